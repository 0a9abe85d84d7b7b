"""What the claims are about, run by run: latencies, service of users, targets, programs. Pure.

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
from client.analysis.statistics import Floats
from client.load.records import Run
from client.report.words import seconds

PROMPT_TOKEN, GENERATED_TOKEN = 1.0, 2.0  # of service, as in VTC
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

    @property
    def of_one(self) -> str:
        """The name of a single value."""
        return self.name.removeprefix("mean ").removesuffix(f" p{self.rank}")


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


def urgent_ttft_s(run: Run) -> Floats:
    """Of the requests with the most urgent priority."""
    priority = told(run, "priority", 0)
    waited: Floats = waited_s(run, TTFT)[priority == priority.min()]
    return waited


def programs(run: Run) -> list[list[int]]:
    """The calls of each program in order; a request without a program is one."""
    found: dict[object, list[int]] = {}
    for row, o in enumerate(run.outcomes):
        signals = run.workload.requests[o.index].signals
        found.setdefault(signals.get("program", o.index), []).append(row)
    return list(found.values())


def program_per_token_s(run: Run) -> Floats:
    """From a program's first call to the end of its last, over the tokens that it generated."""
    began, ended = table_of(run.outcomes)["origin_s"], _ended_s(run)
    generated = tokens(run)
    return np.array([(ended[c].max() - began[c[0]]) / generated[c].sum() for c in programs(run)])


def _ended_s(run: Run) -> Floats:
    """When each request ended; infinite if it never did."""
    ended: Floats = np.nan_to_num(table_of(run.outcomes)["end_s"], nan=np.inf)
    return ended


def in_time(run: Run) -> npt.NDArray[np.bool_]:
    """Which met every target that their clients gave."""
    ok = np.array([o.ok for o in run.outcomes])
    met = ok & (waited_s(run, TTFT) <= told(run, "ttft_target_s"))
    met &= ~(TPOT.of(table_of(run.outcomes)) > told(run, "tpot_target_s"))
    return np.asarray(met & (waited_s(run) <= told(run, "deadline_s")))


def _missed(run: Run) -> Floats:
    """With half a request more, so that none is no share of 0, which has no ratio."""
    return np.array([*~in_time(run), 0.5], dtype=np.float64)


def service(run: Run, user: str, at: Floats) -> Floats:
    """The service that a user has received at these moments, as VTC counts it."""
    steps = []
    for o, own in zip(run.outcomes, told(run, "user", ""), strict=True):
        if own == user and o.deliveries:
            steps.append((o.deliveries[0][0], PROMPT_TOKEN * (o.prompt_tokens or 0)))
            steps += [(at, GENERATED_TOKEN * n) for at, n in o.deliveries]
    steps.sort()
    total = np.cumsum([0.0, *(cost for _, cost in steps)])
    return total[np.searchsorted([at for at, _ in steps], at, side="right")]


def service_gap(run: Run) -> Floats:
    """The largest difference between the services that two users received since the first quarter
    of the sends, at moments until the last send: users are backlogged all this time. At least a
    token, since a ratio of 0 says nothing."""
    end_s = run.workload.duration_s
    at = np.linspace(_SETTLED * end_s, end_s, _MOMENTS)
    users = sorted({r.signals["user"] for r in run.workload.requests})
    received = np.array([service(run, user, at) for user in users])
    received -= received[:, :1]
    return np.array([max((received.max(axis=0) - received.min(axis=0)).max(), GENERATED_TOKEN)])


def _of(figure: Figure) -> Callable[[Run], Floats]:
    return lambda run: figure.known(table_of(run.outcomes))


SHOWN = {
    **{
        f"{figure.key}_p{rank}": Metric(f"{figure.name} p{rank}", _of(figure), rank)
        for figure, rank in itertools.product((TTFT, TPOT, ITL, E2E), (50, 99))
    },
    "throughput": Metric(
        "throughput",
        lambda run: np.array([len(run.outcomes) / _ended_s(run).max()]),
        less=False,
        text="{:.3g} requests/s".format,
    ),
}  # of every claim, beside the one that decides
METRICS = {
    **SHOWN,
    "ttft_mean": Metric("mean TTFT", _of(TTFT)),
    "e2e_mean": Metric("mean E2E", _of(E2E)),
    "latency_per_token_mean": Metric(
        "mean latency per token", lambda run: waited_s(run) / tokens(run)
    ),
    "urgent_ttft_mean": Metric("mean TTFT of urgent requests", urgent_ttft_s),
    "service_gap": Metric("largest service gap", service_gap, text="{:,.0f}".format),
    "missed": Metric("share of missed objectives", _missed, share=True, text="{:.2f}".format),
    "program_per_token_mean": Metric("mean latency per token of a program", program_per_token_s),
}
