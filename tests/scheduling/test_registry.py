"""Policies by name: existing ones are made with their options, others are refused with a reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduling.contract import PolicyOptionError
from scheduling.registry import make_policy
from serving.config import Config
from tests.scheduling.step_times import FixedStepTime

MINE = """
from scheduling.contract import PolicyOptionError
from scheduling.policies.orca import Orca

class Mine(Orca):
    def __init__(self, options, token_budget, max_bypass=7, *, own=3):
        self.given = options.max_batch_size, token_budget, max_bypass, own

LIMIT = 5

class Greedy:
    pass

class Sometimes(Orca):
    answers = "sometimes"

class Broken(Orca):
    def __init__(self):
        raise ZeroDivisionError("its author's mistake")
"""


@pytest.fixture
def my_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "my_policies.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_policies"
    sys.modules.pop("my_policies", None)


@pytest.mark.parametrize("name", ["stall-free", "deadline"])
def test_a_policy_and_its_parts_receive_the_servers_step_time(name: str) -> None:
    law = FixedStepTime()
    made: Any = make_policy(name, Config(mode="dynamic", ttft_target_ms=5000.0), law)
    assert getattr(made, "chunks", made).predictor is law
    if name == "deadline":
        assert (made.order.predictor, made.order.ttft_target_s) == (law, 5.0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fifo", "--policy is 'fifo'; allowed: stall-free, orca, tgi, shortest-first, hrrn, "),
        ("my_policies:LIMIT", "LIMIT is 5, neither a class nor a function"),
        ("my_policies:Broken", r"ZeroDivisionError: its author's mistake \(.*my_policies.py:\d+\)"),
        ("my_policies:Sometimes", "answers 'sometimes'; allowed: 'own', 'batch'"),
        ("my_policies:Greedy", "is not a policy: it lacks answers, plan, retire"),
    ],
)
def test_a_policy_that_cannot_be_loaded_is_refused_with_the_reason(
    name: str, message: str, my_policies: str
) -> None:
    with pytest.raises(PolicyOptionError, match=message):
        make_policy(name, Config(mode="dynamic"))


def test_a_custom_policy_is_loaded_by_its_name_with_the_options_that_it_names(
    my_policies: str,
) -> None:
    config = Config(mode="dynamic", max_batch_size=9, token_budget=99, max_bypass=5)
    mine: Any = make_policy(f"{my_policies}:Mine", config)
    assert mine.given == (9, 99, 5, 3)


def test_a_token_budget_that_decodes_alone_use_up_is_refused() -> None:
    config = Config(mode="dynamic", token_budget=32, max_batch_size=32)
    with pytest.raises(PolicyOptionError, match=r"--token-budget is 32; .* more than --max-b"):
        make_policy("stall-free", config)
