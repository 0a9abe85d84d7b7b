"""A run's figures over its measured window: latencies, throughput, and how many requests met their
objectives.

Failures are never mixed into latencies. Pure functions over the table of requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from client.analysis.figures import (
    E2E,
    LATENCIES,
    TPOT,
    TTFT,
    Requests,
    table_of,
    tokens_between,
)
from client.analysis.statistics import (
    PERCENTILES,
    Floats,
    Interval,
    percentile_interval,
    slope,
)
from client.load.records import Run
from client.workloads.spec import SpecError

_UNIT_S = {"ms": 1e-3, "s": 1.0}
_OBJECTIVE = re.compile(r"(ttft|tpot|e2e)\s*:\s*(\d+\.?\d*|\.\d+)(ms|s)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Slopes:
    """How a run's queue grew: requests in flight (per s), in its later half, and TTFT (s per s)."""

    span_s: float
    in_flight: Interval
    later: Interval
    wait: Interval


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run's figures. Latencies (seconds) are of requests that arrived within the window.

    They are those of immediate requests; deferred ones have ``deferred_e2e`` and a deadline.

    ``throughput`` is output tokens a second delivered within the window [warm_up_s, end]; it is
    not the server's busy throughput. ``lag`` is sent minus intended of every request.
    ``goodput`` is good requests a second of the window, None without objectives; ``attained`` the
    good share of the ``arrived`` in it, ``attained_sent`` the same with latencies from the send:
    they differ if the client was late. ``requests`` is the table of all of them.
    ``slopes`` is None where the run is too short, or its load not steady.
    """

    requests: Requests
    planned: int
    ok: int
    failed: int
    unfinished: int
    warm_up_s: float
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
    slopes: Slopes | None

    def intervals(self, name: str) -> dict[str, Interval]:
        """p50 p90 p95 p99 with their intervals, however small n is; empty for no values."""
        found = {f"p{p}": percentile_interval(self.latencies[name], p) for p in PERCENTILES}
        return {p: interval for p, interval in found.items() if interval is not None}


@dataclass(frozen=True, slots=True)
class Objectives:
    """Objectives that a good request meets, in seconds; None: no objective."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


def parse_objectives(text: str) -> Objectives:
    """``ttft:500ms,tpot:50ms,e2e:10s``. A number needs its unit: 500 might be either."""
    values: dict[str, float] = {}
    for part in text.split(","):
        found = _OBJECTIVE.fullmatch(part.strip())
        name, number, unit = found.groups() if found else ("", "0", "s")
        if not float(number) > 0 or f"{name}_s" in values:
            raise SpecError(
                f"objectives {text!r}: expected ttft:500ms,tpot:50ms,e2e:10s, each once, > 0 and "
                "with its unit"
            )
        values[f"{name}_s"] = float(number) * _UNIT_S[unit]
    return Objectives(**values)


_SAMPLE_S = 0.02  # of a queue
FRONT = 0.25  # of the sends of a steady load


def warm_up(run: Run) -> float:
    """The seconds cut from its front: the same of all runs of a workload, unless they were
    interrupted, so that they are measured over one window.

    Nothing measured decides it: with a cut found from the data 85 to 91 % of the 95 % intervals
    contained the truth. Bursts, plans, traces and closed loops are not cut.
    """
    open_loop = run.workload.steady and run.workload.users is None
    return FRONT * run.window_end_s if open_loop else 0.0


def measure(
    run: Run, objectives: Objectives | None = None, cut_s: float | None = None
) -> RunFigures:
    """Reduce a run to its figures; ``cut_s``: another warm-up than that of its workload."""
    end_s = run.window_end_s
    cut_s = warm_up(run) if cut_s is None else cut_s
    window_s = max(end_s - cut_s, 1e-9)
    requests = table_of(run.outcomes)
    ok, unfinished, deferred = requests["ok"], requests["unfinished"], requests["deferred"]
    within = (cut_s <= requests["origin_s"]) & (requests["origin_s"] <= end_s)
    ended = ok & (cut_s <= requests["end_s"]) & (requests["end_s"] <= end_s)
    counted = within & (ok | unfinished)
    kinds = {kind: requests.where(counted & (deferred == kind)) for kind in (False, True)}
    late = requests["sent_s"] - requests["intended_s"]
    arrived = int(within.sum())
    good = good_sent = None
    if objectives is not None:
        inside = requests.where(within)
        good = int(meets(inside, objectives).sum())
        inside.rows["origin_s"] = inside["sent_s"]
        good_sent = int(meets(inside, objectives).sum())
    return RunFigures(
        requests=requests,
        planned=len(run.workload.requests),
        ok=int(ok.sum()),
        failed=int((~ok & ~unfinished).sum()),
        unfinished=int(unfinished.sum()),
        warm_up_s=cut_s,
        window_s=window_s,
        arrived=arrived,
        offered=arrived / window_s,
        achieved=int(ended.sum()) / window_s,
        throughput=tokens_between(requests, cut_s, end_s) / window_s,
        output_tokens=int(np.nansum(requests["output_tokens"])),
        latencies={f.key: f.known(kinds[f.deferred]) for f in LATENCIES},
        lag=late[~np.isnan(late)],
        goodput=None if good is None else good / window_s,
        attained=None if good is None or not arrived else good / arrived,
        attained_sent=None if good_sent is None or not arrived else good_sent / arrived,
        deferred=int(deferred.sum()),
        deadlines_met=int((deferred & in_time(requests)).sum()),
        slopes=_slopes(run, requests, cut_s),
    )


def _slopes(run: Run, requests: Requests, cut_s: float) -> Slopes | None:
    times = np.arange(cut_s, min(run.window_end_s, run.wall_s), _SAMPLE_S)
    origin, first = requests["origin_s"], requests["first_s"]
    begun = ~np.isnan(first) & (origin >= cut_s)
    steady = run.workload.steady and run.workload.users is None
    if not steady or len(times) < 20 or begun.sum() < 6:
        return None
    # Samples of a queue are correlated over a residence; thinned, their slope can be judged.
    times = times[:: max(1, round(len(times) / 20))]
    counts = requests.in_flight(times)
    half = len(times) // 2
    return Slopes(
        span_s=float(times[-1] - times[0]),
        in_flight=slope(times, counts),
        later=slope(times[half:], counts[half:]),
        wait=slope(origin[begun], (first - origin)[begun]),
    )


def meets(requests: Requests, objectives: Objectives) -> npt.NDArray[np.bool_]:
    """Which requests are good; failed and unfinished ones never are.

    Objectives apply to immediate requests; deferred ones only have their deadline.
    """
    good = requests["ok"] & ~np.isnan(requests["end_s"])
    for figure, limit in (
        (TTFT, objectives.ttft_s), (TPOT, objectives.tpot_s), (E2E, objectives.e2e_s),
    ):  # fmt: skip
        if limit is not None:
            good &= ~(figure.of(requests) > limit)  # one token has no TPOT, and does not miss it
    if objectives.ttft_s is not None:
        good &= ~np.isnan(requests["first_s"])
    return np.where(requests["deferred"], in_time(requests), good)


def in_time(requests: Requests) -> npt.NDArray[np.bool_]:
    """Which responses were complete at their deadline, if they have one."""
    deadline = requests["deadline_s"]
    end = requests["end_s"] - requests["origin_s"]
    return requests["ok"] & np.where(np.isnan(deadline), ~np.isnan(end), end <= deadline)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Isolated:
    """E2E of a request alone: base + per prompt token + per output token, in seconds."""

    base_s: float
    prompt_s: float
    output_s: float


def fit_isolated(rows: npt.NDArray[Any]) -> Isolated:
    """Fit it to requests that ran alone, each weighted by 1/E2E; no coefficient is negative."""
    from scipy.optimize import nnls  # a fifth of a second, which few commands need

    done = rows[rows["ok"]]
    if len(done) < 3:
        raise ValueError("at least three responses are needed to know the isolated latency")
    e2e = done["end_s"] - done["sent_s"]
    prompt, output = (np.nan_to_num(done[f"{kind}_tokens"]) for kind in ("prompt", "output"))
    design = np.column_stack([np.ones(len(done)), prompt, output])
    if not prompt.all():
        design[:, 1] = 0
    coefficients, _ = nnls(design / e2e[:, None], np.ones(len(done)))
    return Isolated(*(float(c) for c in coefficients))
