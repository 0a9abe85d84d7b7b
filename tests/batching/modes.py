"""The modes, and every policy with every way to admit, limits as small as the tests' requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from engine.blocks import Ledger
from generate.modes import LayOut, RectangleLedger, alone, padded, ragged
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.static import Static
from scheduling.registry import POLICIES as REGISTERED
from scheduling.registry import make_policy
from seams import Policy
from serving.config import Config
from tests.scheduling.step_times import FixedStepTime


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    policy: Callable[[float], Policy]  # given max_wait_s
    lay_out: LayOut
    ledger: Callable[[int, int], Ledger]  # of so many blocks of so many tokens


def without_window(make: Callable[[], Policy], _: float) -> Policy:
    """The `policy` of a mode without a time window."""
    return make()


MODES = [
    Mode("nobatch", lambda _: NoBatch(), alone, RectangleLedger),
    Mode("static, batch", lambda wait_s: Static(wait_s, "batch"), padded, RectangleLedger),
    Mode("static, own", lambda wait_s: Static(wait_s, "own"), padded, RectangleLedger),
    Mode("dynamic", lambda _: Orca(), ragged, Ledger),
]
# limits as small as the tests' requests, so that they are met
PREFILL_TOKENS, TOKEN_BUDGET, MAX_BYPASS = 16, 10, 3


def registered(name: str) -> Policy:
    options = Config(
        mode="dynamic",
        max_batch_size=8,
        max_batch_prefill_tokens=PREFILL_TOKENS,
        max_batch_total_tokens=400,
        waiting_served_ratio=0.5,
        max_waiting_tokens=4,
        max_bypass=MAX_BYPASS,
        token_budget=TOKEN_BUDGET,
        ttft_target_ms=10.0,
        tpot_target_ms=5.0,
    )
    return make_policy(name, options, FixedStepTime())


POLICIES: dict[str, Callable[[], Policy]] = {name: partial(registered, name) for name in REGISTERED}
SHARED = "optimistic, shared prefixes"
ADMISSIONS: dict[str, Callable[[int, int], Ledger]] = {
    "reserve": Ledger,
    "optimistic": partial(Ledger, growth_tokens=3),
    SHARED: partial(Ledger, growth_tokens=3, prefix_caching=True),
}
DYNAMIC_MODES = [
    Mode(f"{name}, {admission}", partial(without_window, make), ragged, ledger)
    for name, make in POLICIES.items()
    for admission, ledger in ADMISSIONS.items()
    if admission != SHARED or name in ("stall-free", "hrrn", "dlpm", "mlfq")
]


def every(modes: Sequence[Mode]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("mode", modes, ids=lambda mode: mode.name)


every_mode, every_policy = every(MODES), every(DYNAMIC_MODES)
every_mode_and_policy = every([*MODES, *DYNAMIC_MODES])
