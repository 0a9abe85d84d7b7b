"""The figures of a run with deferred requests: latencies relative to a run without, with confidence
intervals, and deferred tokens/s as shares of the spare capacity and of what the step times
allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from client.analysis.statistics import Floats
from records import IterationRecord, RequestRecord
from scheduling.prediction.step_time import Curve, Work, features, fit
from telemetry.durations import tpot_s, ttft_s

LEAD_IN = 0.15  # of a run's time
BLOCK = 10  # consecutive requests, which had the same queue
RESAMPLES, CONFIDENCE = 500, 0.95


@dataclass(frozen=True, slots=True)
class Step:
    """An iteration: its duration, to the start of the next if that followed at once; and, for
    `budget`, the immediate part, and the budget if there was none."""

    seconds: float
    immediate: Work
    idle_s: float | None


@dataclass(frozen=True, slots=True)
class Measured:
    """A run. Its time ends before the last immediate requests do."""

    start_s: float
    duration_s: float
    iterations: Sequence[IterationRecord]
    steps: Sequence[Step]  # of the iterations
    immediate: Sequence[RequestRecord]  # in order of arrival
    deferred: Sequence[RequestRecord]

    @property
    def within(self) -> list[tuple[IterationRecord, Step]]:
        """Excludes the beginning, in which the first deferred prompts are computed, and the end, in
        which there are no more deferred requests."""
        begin_s, end_s = self.start_s + LEAD_IN * self.duration_s, self.start_s + self.duration_s
        pairs = zip(self.iterations, self.steps, strict=True)
        return [(record, step) for record, step in pairs if begin_s <= record.start_s < end_s]

    @property
    def within_s(self) -> float:
        return (1 - LEAD_IN) * self.duration_s

    @property
    def deferred_tokens_per_s(self) -> float:
        return sum(record.deferred_generated for record, _ in self.within) / self.within_s

    @property
    def immediate_tokens_per_s(self) -> float:
        return sum(r.num_generated - r.deferred_generated for r, _ in self.within) / self.within_s

    @property
    def mean_output(self) -> float:
        return float(np.mean([r.max_tokens for r in (*self.immediate, *self.deferred)]))

    def latencies_s(self) -> Floats:
        """TTFT and TPOT [2, n] of the immediate requests that arrived after the beginning."""
        begin_s = self.start_s + LEAD_IN * self.duration_s
        counted = [r for r in self.immediate if r.arrival_s >= begin_s]
        return np.array([[ttft_s(r) for r in counted], [tpot_s(r) for r in counted]], np.float64)


@dataclass(frozen=True, slots=True)
class Cell:
    """One round of one load in one shape, under every policy and twice `alone`: consecutive runs of
    the same arrivals."""

    shape: str
    load: float
    runs: dict[str, Measured]

    def curve(self) -> Curve:
        """The step times in this round."""
        pairs = [pair for run in self.runs.values() for pair in run.within]
        rows = np.array([features(record) for record, _ in pairs])
        return fit(rows, np.array([step.seconds for _, step in pairs]))


@dataclass(frozen=True, slots=True)
class Relative:
    """A ratio to `alone`, and its `CONFIDENCE` interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Point:
    """A policy under a load: latencies as ratios to `alone`, deferred tokens/s as shares."""

    shape: str
    load: float
    policy: str
    requests: int  # immediate ones
    ttft_p50: Relative
    ttft_p99: Relative
    tpot_p50: Relative
    tpot_p99: Relative
    deferred_tokens_per_s: float
    of_spare: float
    of_allowed: float | None  # by the step-time curve under that budget; of `budget` only


def points(cells: Sequence[Cell], only: float, factors: Sequence[float], limit: int) -> list[Point]:
    """Points for every load and shape, with the requests of the rounds pooled; and for each load
    over all shapes, the geometric mean of their ratios, since the tail of one shape would dominate
    a common p99."""
    budgets = {f"budget {factor:g}": factor for factor in factors}
    kinds = list(dict.fromkeys((cell.shape, cell.load) for cell in cells))
    kinds += [("all", load) for load in dict.fromkeys(cell.load for cell in cells)]
    curves = {id(cell): cell.curve() for cell in cells}
    found = []
    for shape, load in kinds:
        here = [cell for cell in cells if cell.load == load and shape in (cell.shape, "all")]
        alone = [cell.runs["alone"] for cell in here]
        spare = only - float(np.mean([run.immediate_tokens_per_s for run in alone]))
        for name in here[0].runs:
            measured = [cell.runs[name] for cell in here]
            tokens_per_s = float(np.mean([run.deferred_tokens_per_s for run in measured]))
            of_allowed = None
            if name in budgets:
                rates = [
                    allowed_tokens_per_s(cell.runs[name], curves[id(cell)], budgets[name], limit)
                    for cell in here
                ]
                of_allowed = tokens_per_s / float(np.mean(rates))
            pairs: dict[str, list[Pair]] = {cell.shape: [] for cell in here}
            for cell in here:
                pairs[cell.shape].append((cell.runs[name], cell.runs["alone"]))
            requests = sum(run.latencies_s().shape[1] for run in measured)
            ttft_p50, ttft_p99, tpot_p50, tpot_p99 = ratios(list(pairs.values()))
            found.append(
                Point(
                    shape, load, name, requests, ttft_p50, ttft_p99, tpot_p50, tpot_p99,
                    tokens_per_s, tokens_per_s / spare, of_allowed,
                )
            )  # fmt: skip
    return found


Pair = tuple[Measured, Measured]  # a run, and the one without deferred requests


def ratios(shapes: Sequence[Sequence[Pair]]) -> list[Relative]:
    """Ratios of p50 and p99 of TTFT and of TPOT: the geometric mean over the shapes.

    Each shape's are of its rounds' requests together. The intervals are a bootstrap's over blocks
    of requests, the same ones on either side, since both runs of a pair had the same arrivals
    (Kunsch, Annals of Statistics 17, 1989; percentile intervals).
    """
    rng = np.random.default_rng(0)
    logs = np.mean([_log_ratios(pairs, rng) for pairs in shapes], axis=0)
    tails = [50 - 50 * CONFIDENCE, 50 + 50 * CONFIDENCE]
    found = []
    for value, *resampled in np.exp(logs):
        low, high = np.percentile(resampled, tails).tolist()
        found.append(Relative(float(value), low, high))
    return found


def _log_ratios(pairs: Sequence[Pair], rng: np.random.Generator) -> Floats:
    """[4 figures, 1 + RESAMPLES]: the measured ratio of one shape, and those of its resamples."""
    both = np.concatenate(
        [np.stack([run.latencies_s(), alone.latencies_s()]) for run, alone in pairs], axis=2
    )  # [2 sides, 2 kinds, n]
    n = both.shape[2]
    starts = rng.integers(0, n, (RESAMPLES, -(-n // BLOCK)))
    chosen = (starts[:, :, None] + np.arange(BLOCK)).reshape(RESAMPLES, -1)[:, :n] % n
    rows = np.concatenate([np.arange(n)[None], chosen])
    found = []
    for run, alone in both.transpose(1, 0, 2):
        for q in (50, 99):
            mine, other = (np.percentile(side[rows], q, axis=1) for side in (run, alone))
            found.append(np.log(mine / other))
    return np.array(found)


def allowed_tokens_per_s(run: Measured, curve: Curve, factor: float, limit: int) -> float:
    """Deferred tokens/s that would use up the budget of each iteration of this run exactly, by the
    measured curve, with every token charged for its share of its prompt; a budget below one row
    counts as its share of a row. `budget` is the policy's own: `factor` x the time of 1/`factor` of
    the immediate work, as far as the places go, and where no immediate request is, its cap."""
    prompt = float(np.mean([r.prompt_tokens for r in run.deferred]))
    output = float(np.mean([r.max_tokens for r in run.deferred]))
    length = prompt + output / 2
    one = Work(
        num_tokens=1 + prompt / output,
        num_rows=1 + 1 / output,
        num_drawn=1,
        attended=length + prompt**2 / 2 / output,
        context=length + prompt / output,
        deferred=True,
    )
    busy_s = idle_s = tokens = idle_tokens = 0.0
    for _, step in run.within:
        if step.immediate.num_tokens:
            allowed_factor = max(1.0, min(factor, limit / step.immediate.num_rows))
            budget_s = allowed_factor * curve.seconds(step.immediate.scaled(1 / allowed_factor))
            tokens += _rows(curve, step.immediate, one, budget_s, limit - step.immediate.num_rows)
            busy_s += step.seconds
        elif step.idle_s is not None and (rows := _rows(curve, Work(), one, step.idle_s, limit)):
            idle_tokens += step.seconds * rows / curve.seconds(one.scaled(rows))
            idle_s += step.seconds
    if idle_s:
        tokens += max(0.0, run.within_s - busy_s) * idle_tokens / idle_s
    return tokens / run.within_s


def _rows(curve: Curve, immediate: Work, one: Work, budget_s: float, most: float) -> float:
    low, high = 0.0, max(0.0, most)
    for _ in range(20):
        rows = (low + high) / 2
        if curve.seconds(immediate.beside(one.scaled(rows))) <= budget_s:
            low = rows
        else:
            high = rows
    if low < 1 <= most:
        alone_s, with_one_s = curve.seconds(immediate), curve.seconds(immediate.beside(one))
        return (budget_s - alone_s) / (with_one_s - alone_s) if budget_s > alone_s else 0.0
    return low
