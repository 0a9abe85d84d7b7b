"""The figures of a run: latencies, throughput, goodput, as the field defines them.

TTFT, ITL and E2E as in vLLM's ``benchmark serve``, TPOT to the last token; counted from the
intended time (the ``sent`` variants from the send, beside them). Failures are never mixed into
latencies; requests cut before their end count as +inf. Pure functions over the records of a run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from client.analysis.statistics import (
    PERCENTILES,
    Interval,
    mser5,
    percentile,
    percentile_interval,
)
from client.load.records import Outcome, Run
from client.workloads.spec import SpecError
from client.workloads.workload_file import Workload

Floats = npt.NDArray[np.float64]

_UNIT_S = {"ms": 1e-3, "s": 1.0}  # "ms" before "s", which it ends with
LATENCIES = ("ttft", "tpot", "itl", "e2e", "ttft_sent", "e2e_sent", "queue", "deferred_e2e")


@dataclass(frozen=True, slots=True)
class Objectives:
    """Objectives that a good request meets, in seconds; None: no objective."""

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
    good share of the ``arrived`` in it, ``attained_sent`` the same with latencies from the send:
    they differ if the client was late.
    """

    planned: int
    ok: int
    failed: int
    unfinished: int
    warm_up_s: float
    settled: bool
    window_s: float
    arrived: int
    offered: float
    achieved: float
    throughput: float
    output_tokens: int
    latencies: dict[str, Floats]
    lag: Floats
    goodput: float | None
    attained: float | None
    attained_sent: float | None
    deferred: int
    deadlines_met: int

    def percentiles(self, name: str) -> dict[str, float | None]:
        """p50 p90 p95 p99; None where n is too small."""
        return {f"p{p}": percentile(self.latencies[name], p) for p in PERCENTILES}

    def intervals(self, name: str) -> dict[str, Interval]:
        """The same with their intervals, however small n is; empty for no values."""
        found = {f"p{p}": percentile_interval(self.latencies[name], p) for p in PERCENTILES}
        return {p: interval for p, interval in found.items() if interval is not None}


@dataclass(frozen=True, slots=True)
class WarmUp:
    """The part cut from the front of a run. ``settled``: the load became stationary."""

    cut_s: float
    settled: bool


FRONT = 0.25  # of the sends of a comparison's runs
_FEW = 100  # requests: below, MSER-5 takes a pause between two of them for the end of a warm-up


def shared_warm_up(workload: Workload) -> WarmUp:
    """The cut that all runs of one workload share, so that they are measured over one stretch.

    It is fixed before anything is measured. A cut found from the data (MSER-5, the latest of the
    runs) biases short runs: 91 % of the 95 % intervals contained the truth, and 85 % without a
    quarter as the minimum. Bursts, ramps and traces are not cut.
    """
    return WarmUp(FRONT * workload.duration_s if workload.steady else 0.0, settled=True)


def warm_up(run: Run) -> WarmUp:
    """The cut of a single run, for steady loads only: MSER-5 on the requests in flight.

    With few requests it ends with the first completion, after a quarter of the sends at most.
    """
    if not run.workload.steady or run.workload.users is not None:
        return WarmUp(0.0, settled=True)
    if len(run.workload.requests) < _FEW:
        first_s = min((o.end_s for o in run.outcomes if o.end_s is not None), default=0.0)
        return WarmUp(min(first_s, FRONT * run.workload.duration_s), settled=True)
    samples = [(t, n) for t, n in run.in_flight if t <= run.window_end_s]
    cut, settled = mser5(np.array([n for _, n in samples], dtype=np.float64))
    return WarmUp(samples[cut][0] if cut < len(samples) and cut else 0.0, settled)


def measure(run: Run, objectives: Objectives | None = None, cut: WarmUp | None = None) -> Measured:
    """Reduce a run to its figures; ``cut`` is its own warm-up if none is shared."""
    end_s = run.window_end_s
    cut = cut or warm_up(run)
    window_s = max(end_s - cut.cut_s, 1e-9)
    inside = [o for o in run.outcomes if cut.cut_s <= o.origin_s <= end_s]
    counted = [o for o in inside if o.ok or o.unfinished]
    good = good_sent = None
    if objectives is not None and objectives.any():
        good = sum(meets(o, objectives) for o in inside)
        good_sent = sum(meets(o, objectives, o.sent_s) for o in inside)
    later = [o for o in run.outcomes if o.service == "deferred"]
    ended = [o for o in run.outcomes if o.ok and cut.cut_s <= (o.end_s or 0.0) <= end_s]
    return Measured(
        planned=len(run.workload.requests),
        ok=sum(o.ok for o in run.outcomes),
        failed=sum(not o.ok and not o.unfinished for o in run.outcomes),
        unfinished=sum(o.unfinished for o in run.outcomes),
        warm_up_s=cut.cut_s,
        settled=cut.settled,
        window_s=window_s,
        arrived=len(inside),
        offered=len(inside) / window_s,
        achieved=len(ended) / window_s,
        throughput=tokens_between(run, cut.cut_s, end_s) / window_s,
        output_tokens=sum(o.output_tokens or 0 for o in run.outcomes),
        latencies=_latencies(counted),
        lag=np.array([o.sent_s - o.intended_s for o in run.outcomes if o.intended_s is not None]),
        goodput=None if good is None else good / window_s,
        attained=None if good is None or not inside else good / len(inside),
        attained_sent=None if good_sent is None or not inside else good_sent / len(inside),
        deferred=len(later),
        deadlines_met=sum(_in_time(o) for o in later),
    )


def tpot_s(outcome: Outcome) -> float | None:
    """(last token - first token) / (tokens - 1); None below two tokens.

    Without a stream the time of the last token is unknown, and the end of the response replaces it.
    """
    tokens = outcome.output_tokens or 0
    last_s = outcome.deliveries[-1][0] if outcome.deliveries else outcome.end_s
    if not outcome.ok or outcome.first_s is None or last_s is None or tokens < 2:
        return None
    return (last_s - outcome.first_s) / (tokens - 1)


def itl_s(outcome: Outcome) -> list[float]:
    """Gaps between consecutive tokens; tokens of the same event are 0 apart."""
    gaps: list[float] = []
    before: float | None = None
    for at, tokens in outcome.deliveries:
        gaps += [at - before] if before is not None else []
        gaps += [0.0] * (tokens - 1)
        before = at
    return gaps


def meets(outcome: Outcome, objectives: Objectives, since_s: float | None = None) -> bool:
    """Whether a request is good; failed and unfinished ones never are.

    Latencies start at ``since_s`` if given, otherwise at the origin. Objectives apply to immediate
    requests; deferred ones only have their deadline.
    """
    if not outcome.ok or outcome.end_s is None:
        return False
    if outcome.service == "deferred":
        return _in_time(outcome)
    since_s = outcome.origin_s if since_s is None else since_s
    ttft = None if outcome.first_s is None else outcome.first_s - since_s
    for value, limit in (
        (ttft, objectives.ttft_s),
        (tpot_s(outcome), objectives.tpot_s),
        (outcome.end_s - since_s, objectives.e2e_s),
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


def tokens_between(run: Run, start_s: float, end_s: float) -> int:
    """Tokens delivered in the window; a response without a stream delivers all at its end."""
    total = 0
    for o in run.outcomes:
        if o.deliveries:
            total += sum(tokens for at, tokens in o.deliveries if start_s <= at <= end_s)
        elif o.end_s is not None and start_s <= o.end_s <= end_s:
            total += o.output_tokens or 0
    return total
