"""When the store of a server's jobs is opened, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.config import Config
from tests.api.conftest import serving
from tests.support.dialects import NATIVE, RESPONSES, ask, refused

WHERE = "postgresql://secret-user:secret-password@127.0.0.3:1/secret-database"


def test_nothing_is_made_on_disk_before_it_is_needed(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with serving(Config(mode="dynamic", data_dir=str(folder))) as client:
        assert ask(client, NATIVE).status_code == 200
        assert client.get("/stats").get_json()["jobs"] == {"store": "unused"}
        assert not folder.exists()
        assert client.get("/v1/files").status_code == 200
        assert folder.exists()


def test_a_store_that_cannot_be_opened_turns_the_batch_api_off_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its address is logged, without its password, and not shown to clients."""
    too_long = str(tmp_path / ("x" * 300))  # even root cannot open it
    for config in (Config("dynamic", data_dir=too_long), Config("dynamic", database_url=WHERE)):
        with serving(config) as client:
            answers = [client.get(path) for path in ("/v1/files", "/v1/batches/b", "/stats")]
            assert ask(client, NATIVE).status_code == ask(client, RESPONSES).status_code == 200
            answers.append(client.post(RESPONSES, json={"input": "x"}))
        assert [answer.status_code for answer in answers] == [503, 503, 200, 503]
        assert answers[0].get_json()["error"]["code"] == "store_unavailable"
        assert answers[2].get_json()["jobs"] == {"store": "unavailable"}
        assert '"store": false' in refused(answers[3], RESPONSES, 503), "the way out"
        for answer in answers:
            assert "secret-" not in answer.text
            assert "127.0.0.3" not in answer.text
    assert "127.0.0.3" in caplog.text
    assert "secret-password" not in caplog.text
