"""The trade-off of the deferred policy, by the benchmark itself in virtual time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from benchmarks.deferred.play import (
    ALONE,
    BACKLOG,
    LATENCIES,
    Bench,
    Measured,
    Sizes,
    arrivals,
    policies,
)
from scheduling.classes.simple import Wrapper
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor
from seams import Opening, Outcome, Pending, Plan, Step, View
from tests.support.hashed import VOCAB_SIZE

FACTORS = (1.05, 1.15, 2.0)
LOADS = [0.3, pytest.param(0.6, marks=pytest.mark.long)]
LEAST_USED = {  # of the spare capacity, by load and factor
    0.3: {1.05: 0.07, 1.15: 0.15, 2.0: 0.57},
    0.6: {1.05: 0.07, 1.15: 0.2, 2.0: 0.65},
}
PLAYED_S = {0.3: 12.0, 0.6: 108.0}  # a p99 needs more requests, the fuller the machine is
PLANNING_S = 2e-4  # and delivery, of an iteration
BESIDE_S = 1e-4  # more, while there are deferred requests


class VirtualClock:
    def __init__(self) -> None:
        self.at_s = 0.0

    def __call__(self) -> float:
        return self.at_s


class Machine:
    """A model whose iterations last as long as those of a small one on two cores, within 3 %."""

    context, num_blocks, block_tokens = 1024, 1 << 17, 1
    lost: str | None = None

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.rng = np.random.default_rng(0)

    def open(self, new: Sequence[Opening]) -> None: ...

    def start(self, steps: Sequence[Step], released: Sequence[int]) -> Pending:
        tokens = sum(step.num_tokens for step in steps)
        law_ms = np.interp(tokens, [0, 4, 8, 32, 128, 1024], [2.3, 2.6, 3.3, 6.5, 16, 60])
        duration_s = float(law_ms) / 1000 * self.rng.lognormal(0, 0.03)
        return Done(self.clock, Outcome([[1] * s.draw for s in steps], tokens, duration_s))


@dataclass(frozen=True, slots=True)
class Done:
    clock: VirtualClock
    outcome: Outcome

    def result(self) -> Outcome:
        self.clock.at_s += self.outcome.duration_s + PLANNING_S
        return self.outcome


def slower(
    mixed: Callable[[View], Plan], clock: VirtualClock, seconds: float
) -> Callable[[View], Plan]:
    def plan(view: View) -> Plan:
        clock.at_s += seconds
        return mixed(view)

    return plan


@dataclass(frozen=True, slots=True)
class Setting:
    """A machine, immediate requests at a share of its capacity, and what a run of them taught."""

    clock: VirtualClock
    bench: Bench
    times: list[float]
    learnt: Predictor
    deferred_alone_per_s: float


@cache
def setting(load: float) -> Setting:
    clock = VirtualClock()
    bench = Bench(Machine(clock), VOCAB_SIZE, 32, Sizes(), clock)
    predictor = Predictor()
    only = bench.play(Orca(), [], 3.0, BACKLOG, predictor, 0)
    capacity = only.deferred_tokens_per_s / only.mean_output
    times = arrivals("poisson", load * capacity, PLAYED_S[load], 0)
    bench.play(Orca(), times, PLAYED_S[load], 0, predictor, 0)
    return Setting(clock, bench, times, predictor, only.deferred_tokens_per_s)


@cache
def played(load: float, name: str, beside_s: float = 0.0) -> Measured:
    """`beside_s`: for which planning takes longer while there are deferred requests."""
    of, own = setting(load), copy.deepcopy(setting(load).learnt)
    policy = policies(FACTORS, 0.1)[name](own)
    if isinstance(policy, Wrapper):
        policy.mixed = slower(policy.mixed, of.clock, beside_s)  # type: ignore[assignment, method-assign]
    backlog = 0 if name in ALONE else BACKLOG
    return of.bench.play(policy, of.times, PLAYED_S[load], backlog, own, 0)


def to_alone(load: float, name: str, latency: str, beside_s: float = 0.0) -> float:
    of = LATENCIES[latency]
    return of(played(load, name, beside_s)) / of(played(load, "alone"))


def of_spare(load: float, name: str, beside_s: float = 0.0) -> float:
    spare = setting(load).deferred_alone_per_s - played(load, "alone").immediate_tokens_per_s
    return played(load, name, beside_s).deferred_tokens_per_s / spare


def holds(load: float, factor: float, beside_s: float = 0.0) -> bool:
    name = f"budget {factor:g}"
    return all(
        to_alone(load, name, latency, beside_s) <= factor * noise
        for latency, noise in (("ttft_p99_s", 1.08), ("tpot_p99_s", 1.03), ("tpot_p50_s", 1.03))
    )


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("factor", FACTORS)
def test_immediate_requests_stay_within_the_factor_and_deferred_ones_get_what_it_allows(
    load: float, factor: float
) -> None:
    assert holds(load, factor)
    assert of_spare(load, f"budget {factor:g}") >= LEAST_USED[load][factor]


def test_planning_for_deferred_requests_takes_part_of_their_budget() -> None:
    assert holds(0.3, 1.15, BESIDE_S)
    assert of_spare(0.3, "budget 1.15", BESIDE_S) > 0


@pytest.mark.parametrize("load", LOADS)
def test_the_simple_policies_are_dominated(load: float) -> None:
    for name in ("fifo", "priority"):
        for latency in ("ttft_p99_s", "tpot_p99_s", "tpot_p50_s"):
            assert to_alone(load, name, latency) > to_alone(load, "budget 2", latency)
    assert of_spare(load, "exclusive") < of_spare(load, "budget 1.15")
