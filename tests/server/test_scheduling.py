"""Policies, admission and time limits through a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduling.registry import POLICIES
from tests.server.hash_app import STEP_S
from tests.server.process import clients, eventually, serving


@pytest.mark.parametrize("policy", POLICIES)
def test_a_server_says_which_policy_it_runs_and_every_request_is_served(
    policy: str, tmp_path: Path
) -> None:
    with (
        serving(tmp_path, policy=policy, admission="optimistic", max_batch_size=4) as server,
        clients(8) as call,
    ):
        answers = [call(server.ask, "x" * (1 + n), 70) for n in range(8)]
        assert [answer.result().status_code for answer in answers] == [200] * 8
        assert server.stats()["policy"] == policy


def test_a_request_that_takes_too_long_is_answered_with_504(tmp_path: Path) -> None:
    with serving(tmp_path, hash_model={STEP_S: 0.05}, request_timeout=0.3) as server:
        answer = server.ask("x", 1000)
        assert answer.status_code == 504
        assert "--request-timeout" in answer.json()["error"]
        # a busy machine may make it late as well, not for ever
        eventually(lambda: server.ask("x", 1).status_code == 200, "a short request to be in time")
