"""The same 20 requests under each mode, from real iterations."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.bare import BareRun, Job, loaded, run_bare
from generate.modes import ModeName
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.static import Static
from seams import Policy

LIMIT = 6


@dataclass(frozen=True, slots=True)
class Case:
    mode: ModeName
    policy: Callable[[], Policy]


MODES = [
    Case("nobatch", NoBatch),
    Case("static", lambda: Static(max_wait_s=0.02)),
    Case("dynamic", Orca),
]


def twenty_requests(vocab_size: int) -> list[Job]:
    """A Poisson process of short and long ones."""
    rng = np.random.default_rng(5)
    return [
        Job(
            rng.integers(0, vocab_size, rng.choice([8, 40, 300], p=[0.5, 0.3, 0.2])).tolist(),
            int(rng.choice([10, 30, 90], p=[0.4, 0.4, 0.2])),
            float(arrival_s),
        )
        for arrival_s in np.cumsum(rng.exponential(0.012, 20))
    ]


def run(case: Case) -> BareRun:
    """The requests as they arrive, by a clock that begins at zero; a time without work is
    skipped."""
    model = loaded("embedded", "float32", LIMIT, case.mode, device="auto")
    work, start_s = twenty_requests(model.vocab_size), time.perf_counter()
    clock = lambda: time.perf_counter() - start_s  # noqa: E731
    return run_bare(model, case.policy(), case.mode, work, LIMIT, clock=clock)
