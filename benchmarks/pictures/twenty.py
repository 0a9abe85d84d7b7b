"""The same 20 requests under each mode and policy, with what every iteration did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.bare import Job, run_bare
from engine.inference import Inference
from generate.modes import ModeName
from model import LoadOptions, load_model
from records import Event
from scheduling.policies.nobatch import NoBatch
from scheduling.policies.orca import Orca
from scheduling.policies.shortest_first import ShortestFirst
from scheduling.policies.stall_free import StallFree
from scheduling.policies.static import Static
from scheduling.policies.tgi import TGI
from seams import Policy

LIMIT = 6


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    mode: ModeName
    policy: Callable[[], Policy]


MODES = [
    Case("nobatch: one at a time", "nobatch", NoBatch),
    Case(
        "static: a batch runs until its longest request is done",
        "static",
        lambda: Static(max_wait_s=0.02),
    ),
    Case("dynamic: requests join and leave at every iteration", "dynamic", Orca),
]


POLICIES = [
    Case("orca: prompts join the decodes of the others", "dynamic", Orca),
    Case(
        "tgi: prefill interrupts decode",
        "dynamic",
        lambda: TGI(max_batch_prefill_tokens=512, waiting_served_ratio=0.3, max_waiting_tokens=20),
    ),
    Case(
        "stall-free: decodes, and 64 tokens an iteration with pieces of prompts",
        "dynamic",
        lambda: StallFree(token_budget=64),
    ),
    Case(
        "shortest-first: requests for few tokens before the others",
        "dynamic",
        lambda: ShortestFirst(max_bypass=8),
    ),
]


def twenty_requests(vocab_size: int) -> list[Job]:
    """A Poisson process of short and long ones."""
    rng = np.random.default_rng(5)
    arrivals_s = np.cumsum(rng.exponential(0.012, 20))
    return [
        Job(
            rng.integers(0, vocab_size, rng.choice([8, 40, 300], p=[0.5, 0.3, 0.2])).tolist(),
            int(rng.choice([10, 30, 90], p=[0.4, 0.4, 0.2])),
            float(arrival_s),
        )
        for arrival_s in arrivals_s
    ]


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    inferences: Sequence[Inference]
    events: Sequence[Event]


def run(case: Case) -> Trace:
    """The requests as they arrive; a time without work is skipped."""
    model = load_model(LoadOptions(case.mode, "embedded", "auto", "float32", 0, LIMIT))
    model.warm_up()
    work = twenty_requests(model.vocab_size)
    done = run_bare(model, case.policy(), case.mode, work, LIMIT)
    return Trace(case.name, done.inferences, done.events)
