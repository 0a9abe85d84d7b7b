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
    Bench,
    Measured,
    Sizes,
    arrivals,
    policies,
)
from benchmarks.deferred.points import Point, points, ratios
from records import RequestRecord
from scheduling.classes.simple import Wrapper
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor
from seams import Opening, Outcome, Pending, Plan, Step, View
from tests.support.hashed import VOCAB_SIZE

FACTORS = (1.05, 1.15, 1.3, 1.5, 2.0)
TTFT_NOISE, TPOT_NOISE = 1.08, 1.03  # of a p99, between two runs without deferred requests
LOADS = [0.3, pytest.param(0.6, marks=pytest.mark.long)]
LEAST_USED = {  # of the spare capacity, by load and factor
    0.3: {1.05: 0.07, 1.15: 0.15, 1.3: 0.25, 1.5: 0.37, 2.0: 0.57},
    0.6: {1.05: 0.07, 1.15: 0.2, 1.3: 0.36, 1.5: 0.51, 2.0: 0.65},
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


@cache
def found_at(load: float, beside_s: float = 0.0) -> dict[str, Point]:
    """The policies' points at a share of the capacity. `beside_s`: for which planning takes longer
    while there are deferred requests."""
    clock = VirtualClock()
    machine = Machine(clock)
    bench = Bench(machine, VOCAB_SIZE, 32, Sizes(), clock)
    predictor = Predictor()
    only = bench.play(Orca(), [], 3.0, BACKLOG, predictor, 0)
    capacity = only.deferred_tokens_per_s / only.mean_output
    played_s = PLAYED_S[load]
    times = arrivals("poisson", load * capacity, played_s, 0)
    bench.play(Orca(), times, played_s, 0, predictor, 0)
    runs = {}
    for name, make in policies(FACTORS, 0.1).items():
        own, backlog = copy.deepcopy(predictor), 0 if name in ALONE else BACKLOG
        machine.rng = np.random.default_rng(int(name == "alone again"))  # else the same noise
        policy = make(own)
        if isinstance(policy, Wrapper):
            policy.mixed = slower(policy.mixed, clock, beside_s)  # type: ignore[assignment, method-assign]
        runs[name] = bench.play(policy, times, played_s, backlog, own, 0)
    turns = {("poisson", load): {name: [run] for name, run in runs.items()}}
    measured = points(turns, only.deferred_tokens_per_s)
    return {p.policy: p for p in measured if p.shape == "poisson"}


def within(found: dict[str, Point], factor: float) -> Point:
    """The point of this budget, which holds its factor."""
    point = found[f"budget {factor:g}"]
    assert point.ttft_p99.value <= factor * TTFT_NOISE
    assert point.tpot_p99.value <= factor * TPOT_NOISE
    assert point.tpot_p50.value <= factor * TPOT_NOISE
    return point


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("factor", FACTORS)
def test_immediate_requests_stay_within_the_factor_and_deferred_ones_get_what_it_allows(
    load: float, factor: float
) -> None:
    point = within(found_at(load), factor)
    assert point.of_spare >= LEAST_USED[load][factor]


@pytest.mark.parametrize("factor", [1.05, 1.15, 1.3])
def test_planning_for_deferred_requests_takes_part_of_their_budget(factor: float) -> None:
    assert within(found_at(0.3, BESIDE_S), factor).of_spare > 0


@pytest.mark.parametrize("load", LOADS)
def test_two_runs_without_deferred_requests_differ_by_the_noise_at_most(
    load: float,
) -> None:
    again = found_at(load)["alone again"]
    assert 1 / TTFT_NOISE <= again.ttft_p99.value <= TTFT_NOISE
    assert 1 / TPOT_NOISE <= again.tpot_p99.value <= TPOT_NOISE


@pytest.mark.parametrize("load", LOADS)
def test_the_simple_policies_are_dominated(
    load: float,
) -> None:
    found = found_at(load)
    best = found["budget 2"]
    for name in ("fifo", "priority"):
        assert found[name].ttft_p99.value > best.ttft_p99.value
        assert found[name].tpot_p99.value > best.tpot_p99.value
        assert found[name].tpot_p50.value > best.tpot_p50.value
    assert found["exclusive"].of_spare < found["budget 1.15"].of_spare


def run(ttfts_s: Sequence[float], tpots_s: Sequence[float]) -> Measured:
    records = []
    for ttft_s, tpot_s in zip(ttfts_s, tpots_s, strict=True):
        first_s = 1.0 + ttft_s
        end_s = first_s + 4 * tpot_s
        times = 1.0, 1.0, first_s, end_s, end_s
        records.append(RequestRecord(*times, 4, 5, 5, 0, "immediate", "length"))
    return Measured(0.0, 2.0, [], records)


def test_a_ratio_of_the_same_requests_slowed_evenly_is_certain() -> None:
    rng = np.random.default_rng(0)
    ttfts_s, tpots_s = rng.lognormal(size=(2, 300))
    alone = run(ttfts_s.tolist(), tpots_s.tolist())
    slowed = run((1.5 * ttfts_s).tolist(), (1.2 * tpots_s).tolist())
    found = ratios([[(slowed, alone), (slowed, alone)]])
    assert [r.value for r in found] == pytest.approx([1.5, 1.5, 1.2, 1.2])
    assert [r.high - r.low for r in found] == pytest.approx([0.0] * 4, abs=1e-9)


def test_a_ratio_of_unlike_runs_comes_with_an_interval_around_it() -> None:
    rng = np.random.default_rng(0)
    one, other = (run(*rng.lognormal(size=(2, 300)).tolist()) for _ in range(2))
    for ratio in ratios([[(one, other)]]):
        assert ratio.low < ratio.value < ratio.high


def test_a_figure_of_several_shapes_is_the_geometric_mean_of_their_ratios() -> None:
    """A shape with a tail far beyond the others' must not decide the p99 of all."""
    rng = np.random.default_rng(0)
    calm, bursty = rng.lognormal(size=(2, 300)), 50 * rng.lognormal(size=(2, 300))
    alone = [run(*(side.tolist() for side in shape)) for shape in (calm, bursty)]
    slower = [
        run(*((by * side).tolist() for side in shape)) for shape, by in ((calm, 1.44), (bursty, 1))
    ]
    found = ratios([[(slower[0], alone[0])], [(slower[1], alone[1])]])
    assert [r.value for r in found] == pytest.approx([1.2] * 4)
    pooled = ratios([list(zip(slower, alone, strict=True))])
    assert pooled[1].value == pytest.approx(1.0, abs=0.01)
