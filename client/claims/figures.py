"""What the claims are about, run by run: latencies, service of users, goodput, programs. Pure.

Each metric gives a run's values, one for each request, token, program or the run itself; those of
all seeds are pooled into a mean or a percentile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from client.analysis.figures import E2E, ITL, TPOT, TTFT, Figure, table_of
from client.analysis.statistics import Floats, jain
from client.load.records import Run
from client.report.html.page import seconds

PROMPT_TOKEN, GENERATED_TOKEN = 1.0, 2.0  # of service, as in VTC
TARGETS = {"ttft_target_s", "tpot_target_s", "deadline_s"}
_SETTLED = 0.25  # of the sends, after which all users are backlogged
_MOMENTS = 400


@dataclass(frozen=True, slots=True)
class Metric:
    """``rank``: of the percentile; None for the mean. ``less``: smaller is better. ``share``: the
    mean is one, and values are 1 for what it counts. ``text`` writes a value."""

    name: str
    values: Callable[[Run], Floats]
    rank: float | None = None
    less: bool = True
    share: bool = False
    text: Callable[[float], str] = seconds


def told(run: Run, name: str, other: object = np.inf) -> npt.NDArray[Any]:
    """A signal of each request."""
    asked = run.workload.requests
    return np.array([asked[o.index].signals.get(name, other) for o in run.outcomes])


def waited_s(run: Run, figure: Figure = E2E) -> Floats:
    """A latency of each request; infinite if it never came."""
    waited = figure.of(table_of(run.outcomes))
    return np.where(np.isnan(waited), np.inf, waited)


def tokens(run: Run) -> Floats:
    return np.array([o.output_tokens or 1 for o in run.outcomes], dtype=np.float64)


def urgent(run: Run) -> npt.NDArray[np.bool_]:
    """Which have the most urgent priority."""
    priority = told(run, "priority", 0)
    return np.asarray(priority == priority.min())


def programs(run: Run) -> list[list[int]]:
    """The calls of each program in order; a request without a program is one."""
    found: dict[object, list[int]] = {}
    for row, o in enumerate(run.outcomes):
        signals = run.workload.requests[o.index].signals
        found.setdefault(signals.get("program", o.index), []).append(row)
    return list(found.values())


def ends_s(run: Run) -> Floats:
    """Of each program's last call."""
    ended = np.nan_to_num(table_of(run.outcomes)["end_s"], nan=np.inf)
    return np.array([ended[calls].max() for calls in programs(run)])


def program_per_token_s(run: Run) -> Floats:
    """From a program's first call to the end of its last, over the tokens that it generated."""
    began, generated = table_of(run.outcomes)["origin_s"], tokens(run)
    found = zip(programs(run), ends_s(run), strict=True)
    return np.array([(end_s - began[c[0]]) / generated[c].sum() for c, end_s in found])


def in_time(run: Run) -> npt.NDArray[np.bool_]:
    """Which met every target that their clients gave."""
    ok = np.array([o.ok for o in run.outcomes])
    met = ok & (waited_s(run, TTFT) <= told(run, "ttft_target_s"))
    met &= ~(TPOT.of(table_of(run.outcomes)) > told(run, "tpot_target_s"))
    return np.asarray(met & (waited_s(run) <= told(run, "deadline_s")))


def has_targets(run: Run) -> bool:
    return any(TARGETS & r.signals.keys() for r in run.workload.requests)


def users(run: Run) -> list[str]:
    return sorted({r.signals["user"] for r in run.workload.requests if "user" in r.signals})


def service(run: Run, user: str) -> tuple[Floats, Floats]:
    """When tokens came for this user, and the service received by then, as VTC counts it."""
    steps = []
    for o, own in zip(run.outcomes, told(run, "user", ""), strict=True):
        if own == user and o.deliveries:
            steps.append((o.deliveries[0][0], PROMPT_TOKEN * (o.prompt_tokens or 0)))
            steps += [(at, GENERATED_TOKEN * n) for at, n in o.deliveries]
    steps.sort()
    return np.array([at for at, _ in steps]), np.cumsum([cost for _, cost in steps])


def service_gaps(run: Run) -> tuple[Floats, Floats]:
    """The largest difference between the services that two users received since the first quarter
    of the sends, at moments until the last send: users are backlogged all this time."""
    end_s = run.workload.duration_s
    at = np.linspace(_SETTLED * end_s, end_s, _MOMENTS)
    received = _received(run, at)
    return at, np.max(received, axis=0) - np.min(received, axis=0)


def _received(run: Run, at: Floats) -> list[Floats]:
    """The service of each user since the first of these moments."""
    found = []
    for user in users(run):
        times, total = service(run, user)
        reached = np.concatenate([[0.0], total])[np.searchsorted(times, at, side="right")]
        found.append(reached - reached[0])
    return found


def _service_gap(run: Run) -> Floats:
    return np.array([max(float(service_gaps(run)[1].max()), GENERATED_TOKEN)])


def _jain(run: Run) -> Floats:
    end_s = run.workload.duration_s
    totals = np.array([own[-1] for own in _received(run, np.array([_SETTLED * end_s, end_s]))])
    return np.array([jain(totals)]) if totals.any() else np.array([])


def _of(figure: Figure) -> Callable[[Run], Floats]:
    return lambda run: figure.known(table_of(run.outcomes))


def _missed(run: Run) -> Floats:
    """With half a request more, so that none is no share of 0, which has no ratio."""
    return np.array([*~in_time(run), 0.5], dtype=np.float64)


def _goodput(run: Run) -> Floats:
    return np.array([(in_time(run).sum() + 0.5) / max(run.workload.duration_s, _last_s(run))])


def _last_s(run: Run) -> float:
    return float(ends_s(run).max()) if run.outcomes else np.inf


def _completed(run: Run) -> Floats:
    """Programs that ended while requests were still sent."""
    return np.array([(ends_s(run) <= run.workload.duration_s).sum() + 0.5])


LATENCIES = {
    f"{figure.key}_p{rank}": Metric(f"{figure.name} p{rank}", _of(figure), rank)
    for figure, rank in itertools.product((TTFT, TPOT, ITL, E2E), (50, 99))
}
METRICS = {
    **LATENCIES,
    "ttft_mean": Metric("mean TTFT", _of(TTFT)),
    "e2e_mean": Metric("mean E2E", _of(E2E)),
    "latency_per_token_mean": Metric(
        "mean latency per token", lambda run: waited_s(run) / tokens(run)
    ),
    "urgent_ttft_mean": Metric(
        "mean TTFT of urgent requests", lambda run: waited_s(run, TTFT)[urgent(run)]
    ),
    "service_gap": Metric("largest service gap", _service_gap, text="{:,.0f}".format),
    "jain": Metric("Jain index of users' service", _jain, less=False, text="{:.2f}".format),
    "missed": Metric("share of missed objectives", _missed, share=True, text="{:.2f}".format),
    "goodput": Metric("goodput", _goodput, less=False, text="{:.3g}/s".format),
    "program_per_token_mean": Metric("mean latency per token of a program", program_per_token_s),
    "completed": Metric("programs completed", _completed, less=False, text="{:.3g}".format),
    "throughput": Metric(
        "throughput",
        lambda run: np.array([len(run.outcomes) / _last_s(run)]),
        less=False,
        text="{:.3g}/s".format,
    ),
}


def shown(run: Run, metric: str) -> list[str]:
    """The metrics that this traffic has, the deciding one first."""
    further = [
        *LATENCIES,
        *(["service_gap", "jain"] if len(users(run)) > 1 else []),
        *(["goodput", "missed"] if has_targets(run) else []),
        *(["completed"] if any("program" in r.signals for r in run.workload.requests) else []),
        "throughput",
    ]
    return [metric, *(key for key in further if key != metric)]
