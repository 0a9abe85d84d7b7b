"""What the claims are about, run by run: latencies, service of users, goodput, programs. Pure.

Each metric gives a run's values, one for each request, token, program or the run itself; those of
all seeds are pooled into a mean or a percentile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from client.analysis.figures import E2E, ITL, TPOT, TTFT, Figure
from client.analysis.requests import table_of
from client.analysis.statistics import Floats, jain
from client.load.records import Outcome, Run

PROMPT_TOKEN, GENERATED_TOKEN = 1.0, 2.0  # of service, as in VTC
_SETTLED = 0.25  # of the sends, after which all users are backlogged
_MOMENTS = 400


@dataclass(frozen=True, slots=True)
class Metric:
    """``rank``: of the percentile; None for the mean. ``less``: smaller is better. ``share``: the
    mean is one, and values are 1 for what it counts."""

    name: str
    values: Callable[[Run], Floats]
    rank: float | None = None
    less: bool = True
    share: bool = False


def signals(run: Run, outcome: Outcome) -> Mapping[str, Any]:
    return run.workload.requests[outcome.index].signals


def e2e_s(o: Outcome) -> float:
    return (o.end_s or np.inf) - o.origin_s


def ttft_s(o: Outcome) -> float:
    return (o.first_s or np.inf) - o.origin_s


def urgent(run: Run) -> list[Outcome]:
    """Those of the most urgent priority."""
    best = min(signals(run, o).get("priority", 0) for o in run.outcomes)
    return [o for o in run.outcomes if signals(run, o).get("priority", 0) == best]


def programs(run: Run) -> list[list[Outcome]]:
    """The calls of each program in order; a request without a program is one."""
    found: dict[object, list[Outcome]] = {}
    for o in run.outcomes:
        found.setdefault(signals(run, o).get("program", o.index), []).append(o)
    return list(found.values())


def program_per_token_s(calls: list[Outcome]) -> float:
    """From its first call to the end of its last, over the tokens that it generated."""
    last_s = max(o.end_s or np.inf for o in calls)
    return (last_s - calls[0].origin_s) / sum(o.output_tokens or 1 for o in calls)


def in_time(run: Run, o: Outcome) -> bool:
    """Whether it met every target that its client gave."""
    asked = signals(run, o)
    tokens = (o.output_tokens or 1) - 1
    tpot_s = (o.deliveries[-1][0] - o.deliveries[0][0]) / tokens if tokens and o.deliveries else 0
    return o.ok and all(
        found_s <= asked.get(name, np.inf)
        for name, found_s in (
            ("ttft_target_s", ttft_s(o)), ("tpot_target_s", tpot_s), ("deadline_s", e2e_s(o)),
        )
    )  # fmt: skip


def has_targets(run: Run) -> bool:
    names = {"ttft_target_s", "tpot_target_s", "deadline_s"}
    return any(names & r.signals.keys() for r in run.workload.requests)


def users(run: Run) -> list[str]:
    return sorted({r.signals["user"] for r in run.workload.requests if "user" in r.signals})


def service(run: Run, user: str) -> tuple[Floats, Floats]:
    """When tokens came for this user, and the service received by then, as VTC counts it."""
    steps = []
    for o in run.outcomes:
        if signals(run, o).get("user") == user and o.deliveries:
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
    def values(run: Run) -> Floats:
        assert figure.values is not None
        return figure.values(table_of(run.outcomes))

    return values


def _per_token(run: Run) -> Floats:
    return np.array([e2e_s(o) / (o.output_tokens or 1) for o in run.outcomes])


def _missed(run: Run) -> Floats:
    """With half a request more, so that none is no share of 0, which has no ratio."""
    return np.array([*(not in_time(run, o) for o in run.outcomes), 0.5], dtype=np.float64)


def _goodput(run: Run) -> Floats:
    good = sum(in_time(run, o) for o in run.outcomes) + 0.5
    return np.array([good / max(run.workload.duration_s, _last_s(run))])


def _throughput(run: Run) -> Floats:
    return np.array([len(run.outcomes) / _last_s(run)])


def _last_s(run: Run) -> float:
    return max((o.end_s or np.inf for o in run.outcomes), default=np.inf)


def _completed(run: Run) -> Floats:
    """Programs that ended while requests were still sent."""
    ends = [max(o.end_s or np.inf for o in calls) for calls in programs(run)]
    return np.array([sum(end <= run.workload.duration_s for end in ends) + 0.5])


METRICS = {
    **{
        f"{figure.key}_p{rank}": Metric(f"{figure.name} p{rank}", _of(figure), rank)
        for figure, rank in itertools.product((TTFT, TPOT, ITL, E2E), (50, 99))
    },
    "ttft_mean": Metric("mean TTFT", _of(TTFT)),
    "e2e_mean": Metric("mean E2E", _of(E2E)),
    "latency_per_token_mean": Metric("mean latency per token", _per_token),
    "urgent_ttft_mean": Metric(
        "mean TTFT of urgent requests", lambda run: np.array([ttft_s(o) for o in urgent(run)])
    ),
    "service_gap": Metric("largest service gap", _service_gap),
    "jain": Metric("Jain index of users' service", _jain, less=False),
    "missed": Metric("share of missed objectives", _missed, share=True),
    "goodput": Metric("goodput", _goodput, less=False),
    "program_per_token_mean": Metric(
        "mean latency per token of a program",
        lambda run: np.array([program_per_token_s(calls) for calls in programs(run)]),
    ),
    "completed": Metric("programs completed", _completed, less=False),
    "throughput": Metric("throughput", _throughput, less=False),
}
LATENCIES = tuple(f"{name}_p{rank}" for name in ("ttft", "tpot", "itl", "e2e") for rank in (50, 99))


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
