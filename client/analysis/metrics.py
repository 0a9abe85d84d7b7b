"""What a run means: latencies, throughput, goodput, fairness, as the field defines them.

TTFT, TPOT, ITL and E2E as in vLLM's ``benchmark serve``; counted from the intended time (the
``sent`` variants from the send, beside them). Failures are never mixed into latencies; requests
cut before their end count as +inf. Pure functions over the records of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from client.analysis.statistics import PERCENTILES, jain, mser5, percentile
from client.load.records import Outcome, Run
from client.workloads.spec import SpecError

Floats = npt.NDArray[np.float64]

_UNIT_S = {"ms": 1e-3, "s": 1.0}  # "ms" before "s", which it ends with
LATENCIES = ("ttft", "tpot", "itl", "e2e", "ttft_sent", "e2e_sent", "queue", "deferred_e2e")


@dataclass(frozen=True, slots=True)
class Objectives:
    """What a request must meet to be good, in seconds; None asks nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def any(self) -> bool:
        return not (self.ttft_s is None and self.tpot_s is None and self.e2e_s is None)


def parse_objectives(text: str) -> Objectives:
    """``ttft:500ms,tpot:50ms,e2e:10s``. A number needs its unit: 500 might be either."""
    values: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = (piece.strip() for piece in part.partition(":"))
        unit = next((u for u in _UNIT_S if value.endswith(u)), None)
        try:
            number = float(value.removesuffix(unit or ""))
        except ValueError:
            number = math.nan
        if (
            name not in ("ttft", "tpot", "e2e")
            or not 0 < number < math.inf
            or f"{name}_s" in values
        ):
            raise SpecError(
                f"objectives {text!r}: expected ttft:500ms,tpot:50ms,e2e:10s, each once and > 0"
            )
        if unit is None:
            raise SpecError(
                f"objectives {text!r}: {value} has no unit; write {name}:{value}ms or "
                f"{name}:{value}s"
            )
        values[f"{name}_s"] = number * _UNIT_S[unit]
    return Objectives(**values)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run's figures. Latencies (seconds) are of requests that arrived within the window.

    They are those of immediate requests; deferred ones have ``deferred_e2e`` and a deadline.

    ``throughput`` is output tokens a second delivered within the window [warm_up_s, end]; it is
    not the server's busy throughput. ``lag`` is sent minus intended of every request.
    ``goodput`` is good requests a second of the window, None without objectives; ``attained`` the
    good share of those that arrived in it.
    """

    planned: int
    ok: int
    failed: int
    unfinished: int
    warm_up_s: float
    settled: bool
    window_s: float
    offered: float
    achieved: float
    throughput: float
    output_tokens: int
    latencies: dict[str, Floats]
    lag: Floats
    goodput: float | None
    attained: float | None
    deferred: int
    deadlines_met: int

    def percentiles(self, name: str) -> dict[str, float | None]:
        """p50 p90 p95 p99; None where n is too small."""
        return {f"p{p}": percentile(self.latencies[name], p) for p in PERCENTILES}


def measure(run: Run, objectives: Objectives | None = None) -> Measured:
    """Reduce a run to its figures."""
    end_s = run.window_end_s
    warm_up_s, settled = warm_up(run)
    window_s = max(end_s - warm_up_s, 1e-9)
    inside = [o for o in run.outcomes if warm_up_s <= o.origin_s <= end_s]
    counted = [o for o in inside if o.ok or o.unfinished]
    good = [o for o in inside if objectives is not None and meets(o, objectives)]
    with_goal = objectives is not None and objectives.any()
    later = [o for o in run.outcomes if o.service == "deferred"]
    ended = [o for o in run.outcomes if o.ok and warm_up_s <= (o.end_s or 0.0) <= end_s]
    return Measured(
        planned=len(run.workload.requests),
        ok=sum(o.ok for o in run.outcomes),
        failed=sum(not o.ok and not o.unfinished for o in run.outcomes),
        unfinished=sum(o.unfinished for o in run.outcomes),
        warm_up_s=warm_up_s,
        settled=settled,
        window_s=window_s,
        offered=len(inside) / window_s,
        achieved=len(ended) / window_s,
        throughput=_tokens_between(run, warm_up_s, end_s) / window_s,
        output_tokens=sum(o.output_tokens or 0 for o in run.outcomes),
        latencies=_latencies(counted),
        lag=np.array([o.sent_s - o.intended_s for o in run.outcomes if o.intended_s is not None]),
        goodput=len(good) / window_s if with_goal else None,
        attained=len(good) / len(inside) if with_goal and inside else None,
        deferred=len(later),
        deadlines_met=sum(_in_time(o) for o in later),
    )


def warm_up(run: Run) -> tuple[float, bool]:
    """Where the measured window begins: MSER-5 on requests in flight, for steady loads only."""
    if not run.workload.steady or run.workload.users is not None:
        return 0.0, True
    samples = [(t, n) for t, n in run.in_flight if t <= run.window_end_s]
    cut, settled = mser5(np.array([n for _, n in samples], dtype=np.float64))
    return (samples[cut][0] if cut < len(samples) and cut else 0.0), settled


def tpot_s(outcome: Outcome) -> float | None:
    """(end of the last token - first token) / (tokens - 1); None below two tokens."""
    tokens = outcome.output_tokens or 0
    if outcome.first_s is None or outcome.end_s is None or tokens < 2:
        return None
    return (outcome.end_s - outcome.first_s) / (tokens - 1)


def itl_s(outcome: Outcome) -> list[float]:
    """Gaps between consecutive tokens; tokens handed over together are 0 apart."""
    gaps: list[float] = []
    before: float | None = None
    for at, tokens in outcome.deliveries:
        gaps += [at - before] if before is not None else []
        gaps += [0.0] * (tokens - 1)
        before = at
    return gaps


def meets(outcome: Outcome, objectives: Objectives) -> bool:
    """Whether a request is good; failed and unfinished ones never are.

    Objectives are asked of immediate requests, of deferred ones only their deadline.
    """
    if not outcome.ok or outcome.end_s is None:
        return False
    if outcome.service == "deferred":
        return _in_time(outcome)
    tpot = tpot_s(outcome)
    ttft = None if outcome.first_s is None else outcome.first_s - outcome.origin_s
    for value, limit in (
        (ttft, objectives.ttft_s),
        (tpot, objectives.tpot_s),
        (outcome.end_s - outcome.origin_s, objectives.e2e_s),
    ):
        if limit is not None and value is not None and value > limit:
            return False
    return not (objectives.ttft_s is not None and ttft is None)


def _in_time(outcome: Outcome) -> bool:
    if not outcome.ok or outcome.end_s is None:
        return False
    return outcome.deadline_s is None or outcome.end_s - outcome.origin_s <= outcome.deadline_s


def _latencies(outcomes: Sequence[Outcome]) -> dict[str, Floats]:
    values: dict[str, list[float]] = {name: [] for name in LATENCIES}
    for o in outcomes:
        if o.service == "deferred":
            values["deferred_e2e"].append(math.inf if o.end_s is None else o.end_s - o.origin_s)
            continue
        if o.first_s is not None:
            values["ttft"].append(o.first_s - o.origin_s)
            values["ttft_sent"].append(o.first_s - o.sent_s)
        elif o.unfinished:
            values["ttft"].append(math.inf)
            values["ttft_sent"].append(math.inf)
        values["e2e"].append(math.inf if o.end_s is None else o.end_s - o.origin_s)
        values["e2e_sent"].append(math.inf if o.end_s is None else o.end_s - o.sent_s)
        if (tpot := tpot_s(o)) is not None:
            values["tpot"].append(tpot)
        values["itl"] += itl_s(o)
        if o.queue_s is not None:
            values["queue"].append(o.queue_s)
    return {name: np.array(v, dtype=np.float64) for name, v in values.items()}


def _tokens_between(run: Run, start_s: float, end_s: float) -> int:
    """Tokens delivered in the window; an answer without a stream delivers all at its end."""
    total = 0
    for o in run.outcomes:
        if o.deliveries:
            total += sum(tokens for at, tokens in o.deliveries if start_s <= at <= end_s)
        elif o.end_s is not None and start_s <= o.end_s <= end_s:
            total += o.output_tokens or 0
    return total


@dataclass(frozen=True, slots=True)
class Isolated:
    """E2E of a request alone: base + per prompt token + per output token, in seconds."""

    base_s: float
    prompt_s: float
    output_s: float

    def e2e_s(self, prompt_tokens: Floats, output_tokens: Floats) -> Floats:
        return self.base_s + self.prompt_s * prompt_tokens + self.output_s * output_tokens


def fit_isolated(outcomes: Sequence[Outcome]) -> Isolated:
    """Fit it to requests that ran alone, each weighted by 1/E2E; no coefficient is negative.

    Coefficients that come out negative are dropped one by one and the rest fitted again.
    """
    done = [o for o in outcomes if o.ok and o.end_s is not None]
    if len(done) < 3:
        raise ValueError("at least three answers are needed to know the isolated latency")
    e2e = np.array([(o.end_s or 0.0) - o.sent_s for o in done])
    design = np.array([[1.0, o.prompt_tokens or 0, o.output_tokens or 0] for o in done])
    active = [0, 1, 2] if all(o.prompt_tokens for o in done) else [0, 2]
    coefficients = np.zeros(3)
    while active:
        weighted = design[:, active] / e2e[:, None]
        solution = np.linalg.lstsq(weighted, np.ones(len(done)), rcond=None)[0]
        if solution.min() >= 0:
            coefficients[active] = solution
            break
        active.pop(int(np.argmin(solution)))
    return Isolated(*(float(c) for c in coefficients))


@dataclass(frozen=True, slots=True)
class Bucket:
    """Slowdown of the requests whose output lengths lie in low..high."""

    low: int
    high: int
    n: int
    mean: float
    p50: float
    p99: float | None


@dataclass(frozen=True, slots=True)
class Fairness:
    """Slowdown = E2E / E2E alone, by size. ``jain`` is over the buckets' means: 1 is fair."""

    buckets: tuple[Bucket, ...]
    jain: float


def fairness(outcomes: Sequence[Outcome], isolated: Isolated, buckets: int = 5) -> Fairness | None:
    """Slowdown by output length, in buckets of equal numbers; None below five answers a bucket."""
    done = [o for o in outcomes if o.ok and o.end_s is not None]
    if len(done) < 5 * buckets:
        return None
    output = np.array([o.output_tokens or 0 for o in done], dtype=np.float64)
    prompt = np.array([o.prompt_tokens or 0 for o in done], dtype=np.float64)
    e2e = np.array([(o.end_s or 0.0) - o.origin_s for o in done])
    slowdown = e2e / isolated.e2e_s(prompt, output)
    parts = np.array_split(np.argsort(output, kind="stable"), buckets)
    made = tuple(
        Bucket(
            int(output[part].min()),
            int(output[part].max()),
            part.size,
            float(slowdown[part].mean()),
            float(np.median(slowdown[part])),
            percentile(slowdown[part], 99),
        )
        for part in parts
    )
    return Fairness(made, jain(np.array([b.mean for b in made])))
