"""The bare loop under immediate requests at their times, together with deferred ones, and what was
measured of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from benchmarks.bare import Job, jobs, run_bare
from client.analysis.statistics import Floats
from client.workloads.arrivals import horizon, parse_arrivals
from scheduling.classes.budget import Budget
from scheduling.classes.simple import Exclusive, Priority
from scheduling.policies.orca import Orca
from scheduling.prediction.predictor import Predictor
from seams import IterationRecord, Model, Policy, RequestRecord

SHAPES = {"poisson": "poisson", "medium": "plan:medium", "high": "plan:high"}
BACKLOG = 64  # waiting deferred requests, at all times
ALONE = ("alone", "alone again")  # without the backlog
JOBS = 512  # different deferred requests
LEAD_IN = 0.15  # of a run's time


def policies(
    factors: Sequence[float], max_step_s: float
) -> dict[str, Callable[[Predictor], Policy]]:
    """What is compared, by name."""

    def budget(factor: float) -> Callable[[Predictor], Policy]:
        return lambda predictor: Budget(Orca(), predictor, factor, max_step_s)

    return {
        **dict.fromkeys(ALONE, lambda _: Orca()),
        **{f"budget {factor:g}": budget(factor) for factor in factors},
        "fifo": lambda _: Orca(),
        "priority": lambda _: Priority(Orca()),
        "exclusive": lambda _: Exclusive(Orca()),
    }


def arrivals(shape: str, rate: float, duration_s: float, seed: int) -> list[float]:
    """Times of one path, in seconds, at exactly this rate on average."""
    process = parse_arrivals(SHAPES[shape])
    n = max(2, round(rate * duration_s))
    times = process.unit_times(n, np.random.SeedSequence(seed))
    times = times * (duration_s / max(horizon(process, times), float(times[-1])))
    return [float(at_s) for at_s in times]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Tokens: prompts uniform, outputs normal, both cut."""

    prompt: tuple[int, int] = (8, 64)
    output: tuple[int, int, int, int] = (48, 24, 4, 128)  # mean, deviation, least, most

    def jobs(self, vocab_size: int, at_s: Sequence[float], rng: np.random.Generator) -> list[Job]:
        mean, deviation, least, most = self.output
        outputs = np.clip(rng.normal(mean, deviation, len(at_s)), least, most).tolist()
        prompts = rng.integers(self.prompt[0], self.prompt[1] + 1, len(at_s)).tolist()
        return jobs(rng, vocab_size, prompts, outputs, at_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """A run. Its time ends before the last immediate requests do."""

    start_s: float
    duration_s: float
    iterations: Sequence[IterationRecord]
    requests: Sequence[RequestRecord]

    def _rate(self, tokens: Callable[[IterationRecord], int]) -> float:
        """A second, without the beginning, in which the first deferred prompts are computed, and
        the end, in which there are no more deferred requests."""
        begin_s, end_s = self.start_s + LEAD_IN * self.duration_s, self.start_s + self.duration_s
        counted = [tokens(r) for r in self.iterations if begin_s <= r.start_s < end_s]
        return sum(counted) / (end_s - begin_s)

    @property
    def deferred_tokens_per_s(self) -> float:
        return self._rate(lambda record: record.deferred_generated)

    @property
    def immediate_tokens_per_s(self) -> float:
        return self._rate(lambda record: record.num_generated - record.deferred_generated)

    @property
    def mean_output(self) -> float:
        return float(np.mean([r.max_tokens for r in self.requests]))

    def latencies_s(self) -> Floats:
        """TTFT and TPOT [2, n] of the immediate requests that arrived after the beginning."""
        begin_s = self.start_s + LEAD_IN * self.duration_s
        own = [r for r in self.requests if r.service_class == "immediate"]
        counted = [(r.ttft_s, r.tpot_s) for r in own if r.arrival_s >= begin_s]
        return np.array(counted, np.float64).T


def _percentile(row: int, rank: int) -> Callable[[Measured], float]:
    return lambda run: float(np.percentile(run.latencies_s()[row], rank))


LATENCIES: dict[str, Callable[[Measured], float]] = {
    "ttft_p50_s": _percentile(0, 50), "ttft_p99_s": _percentile(0, 99),
    "tpot_p50_s": _percentile(1, 50), "tpot_p99_s": _percentile(1, 99),
}  # fmt: skip
METRICS: dict[str, Callable[[Measured], float]] = {
    **LATENCIES,
    "requests": lambda run: run.latencies_s().shape[1],
    "deferred_per_s": lambda run: run.deferred_tokens_per_s,
    "immediate_per_s": lambda run: run.immediate_tokens_per_s,
}


@dataclass(frozen=True, slots=True)
class Bench:
    """The model, and how it is loaded with requests. The clock is that of a test, too."""

    model: Model
    vocab_size: int
    limit: int
    sizes: Sizes
    clock: Callable[[], float] = time.perf_counter

    def play(
        self,
        policy: Policy,
        arrivals_s: Sequence[float],
        duration_s: float,
        backlog: int,
        predictor: Predictor,
        seed: int,
    ) -> Measured:
        """Immediate requests at their times, and deferred ones beside them until the last immediate
        request is complete."""
        rng, start_s = np.random.default_rng(seed), self.clock()
        work = self.sizes.jobs(self.vocab_size, arrivals_s, rng)
        stored = cycle(self.sizes.jobs(self.vocab_size, [0.0] * JOBS, rng)) if backlog else None
        run = run_bare(
            self.model, policy, "dynamic", work, self.limit, clock=self.clock, predictor=predictor,
            stored=stored, backlog=backlog, until_s=duration_s,
        )  # fmt: skip
        start_s = run.inferences[0].arrival_s - arrivals_s[0] if work else start_s
        return Measured(start_s, duration_s, run.tally.iterations, run.tally.requests)
