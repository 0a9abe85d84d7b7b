"""The first event of `/watch/events`, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serving.config import Config
from tests.api.conftest import serving


@pytest.mark.parametrize("has_one", [True, False])
def test_the_first_event_says_whether_the_model_has_a_chat_template(
    tmp_path: Path, has_one: bool
) -> None:
    if has_one:
        (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    config = Config(mode="dynamic", model=str(tmp_path), data_dir=str(tmp_path / "data"))
    with serving(config) as client, client.get("/watch/events") as response:
        event = next(response.iter_encoded())
    assert event.startswith(b"event: hello\ndata: ")
    assert json.loads(event.split(b"data: ")[1])["chat_template"] is has_one
