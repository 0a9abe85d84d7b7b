"""The limit of a request's time through a real server."""

from __future__ import annotations

from pathlib import Path

from tests.support.hash_app import STEP_S
from tests.support.process import eventually, serving


def test_a_request_that_takes_too_long_is_answered_with_504(tmp_path: Path) -> None:
    with serving(tmp_path, hash_model={STEP_S: 0.05}, request_timeout=0.3) as server:
        answer = server.ask("x", 1000)
        assert answer.status_code == 504
        assert "--request-timeout" in answer.json()["error"]
        # a busy machine may make it late as well, not for ever
        eventually(lambda: server.ask("x", 1).status_code == 200, "a short request to be in time")
