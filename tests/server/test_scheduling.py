"""Policies, admission and time limits through a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduling.registry import POLICIES
from tests.forked import Forked
from tests.server.hash_app import STEP_S
from tests.server.process import PATIENCE_S, clients, environment, eventually, serving


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


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--policy", "fifo"], "allowed: stall-free, orca, tgi, shortest-first"),
        (["--policy", "nowhere:Mine"], "No module named 'nowhere'"),
        (
            ["--policy", "stall-free", "--token-budget", "8"],
            "auto, or more than --max-batch-size (32)",
        ),
        (["--token-budget", "some"], "'some' is neither auto nor a whole number"),
        (["--kv-memory", "much"], "2GiB, 500MB, 30000tokens"),
        (["--waiting-served-ratio", "-1"], "0 to 1000"),
        (["--admission", "hopeful"], "reserve, optimistic"),
    ],
)
def test_a_server_with_a_wrong_choice_does_not_start_and_says_why(
    options: list[str], told: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    assert Forked("app", ["dynamic", *options], environment(), log).wait(PATIENCE_S) != 0
    assert told in log.read_text()
    assert "Traceback" not in log.read_text()
