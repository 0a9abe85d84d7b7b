"""The trade-off of the deferred policy, by the benchmark itself in virtual time."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from benchmarks.deferred.play import (
    BACKLOG,
    LATENCIES,
    Bench,
    Measured,
    Sizes,
    arrivals,
    policies,
)
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor
from seams import Opening, Outcome, Pending, Step
from tests.support.hashed import VOCAB_SIZE

LEAST_USED = {1.05: 0.07, 1.15: 0.15, 2.0: 0.57}  # of the spare capacity, by factor
LOAD, PLAYED_S = 0.3, 12.0
PLANNING_S = 2e-4  # and delivery, of an iteration


class Machine:
    """A model whose iterations last as long as those of a small one on two cores, within 3 %; and
    its clock."""

    context, num_blocks, block_tokens = 1024, 1 << 17, 1
    lost: str | None = None

    def __init__(self) -> None:
        self.at_s = 0.0
        self.rng = np.random.default_rng(0)

    def clock(self) -> float:
        return self.at_s

    def open(self, new: Sequence[Opening]) -> None: ...

    def start(self, steps: Sequence[Step], released: Sequence[int]) -> Pending:
        tokens = sum(step.num_tokens for step in steps)
        law_ms = np.interp(tokens, [0, 4, 8, 32, 128, 1024], [2.3, 2.6, 3.3, 6.5, 16, 60])
        duration_s = float(law_ms) / 1000 * self.rng.lognormal(0, 0.03)
        return Done(self, Outcome([[1] * s.draw for s in steps], tokens, duration_s))


@dataclass(frozen=True, slots=True)
class Done:
    machine: Machine
    outcome: Outcome

    def result(self) -> Outcome:
        self.machine.at_s += self.outcome.duration_s + PLANNING_S
        return self.outcome


@cache
def setting() -> tuple[Bench, list[float], Predictor, float]:
    """A machine, the times of immediate requests at a share of its capacity, what a run of them
    taught, and the rate of deferred requests alone."""
    machine, predictor = Machine(), Predictor()
    bench = Bench(machine, VOCAB_SIZE, 32, Sizes(), machine.clock)
    only = bench.play(Orca(), [], 3.0, BACKLOG, predictor, 0)
    capacity = only.deferred_tokens_per_s / only.mean_output
    times = arrivals("poisson", LOAD * capacity, PLAYED_S, 0)
    bench.play(Orca(), times, PLAYED_S, 0, predictor, 0)
    return bench, times, predictor, only.deferred_tokens_per_s


@cache
def played(name: str) -> Measured:
    bench, times, learnt, _ = setting()
    own, backlog = copy.deepcopy(learnt), 0 if name == "alone" else BACKLOG
    policy = policies(list(LEAST_USED), 0.1)[name](own)
    return bench.play(policy, times, PLAYED_S, backlog, own, 0)


def to_alone(name: str, latency: str) -> float:
    return LATENCIES[latency](played(name)) / LATENCIES[latency](played("alone"))


@pytest.mark.parametrize("factor", LEAST_USED)
def test_immediate_requests_stay_within_the_factor_and_deferred_ones_get_what_it_allows(
    factor: float,
) -> None:
    name = f"budget {factor:g}"
    # noise, as between two runs without deferred requests
    for latency, noise in (("ttft_p99_s", 1.08), ("tpot_p99_s", 1.03), ("tpot_p50_s", 1.03)):
        assert to_alone(name, latency) <= factor * noise, latency
    spare = setting()[-1] - played("alone").immediate_tokens_per_s
    assert played(name).deferred_tokens_per_s / spare >= LEAST_USED[factor]


@pytest.mark.parametrize("name", ["fifo", "priority"])
def test_the_simple_policies_are_dominated(name: str) -> None:
    for latency in ("ttft_p99_s", "tpot_p99_s", "tpot_p50_s"):
        assert to_alone(name, latency) > to_alone("budget 2", latency)
