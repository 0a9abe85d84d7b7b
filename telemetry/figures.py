"""The response of `/stats`: the type and the value of each figure. `/openapi.json` shows the types,
and docs/measuring.md defines each figure. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, get_args

import numpy as np
from typing_extensions import TypedDict

from seams import RequestRecord, ServiceClass

if TYPE_CHECKING:
    from telemetry.stats import Totals

BUCKET_TOKENS = 10  # width of latency-by-num-tokens


class Percentiles(TypedDict):
    p50: float | None
    p90: float | None
    p99: float | None
    n: int


class BatchSize(TypedDict):
    mean: float | None
    max: int
    histogram: dict[str, int]


class DeferredTokens(TypedDict):
    computed: int
    generated: int


PrefixCache = TypedDict("PrefixCache", {"looked-up-tokens": int, "hit-tokens": int})


class Drafts(TypedDict):
    accepted: int
    rejected: int


class LatencyByTokens(TypedDict):
    num_tokens: int
    n: int
    mean_s: float
    p90_s: float


class Ended(TypedDict):
    completed: int
    failed: int
    cancelled: int


Latencies = TypedDict(
    "Latencies",
    {"queue-s": Percentiles, "ttft-s": Percentiles, "tpot-s": Percentiles, "e2e-s": Percentiles},
)


class ClassFigures(Ended, Latencies):
    pass


Sums = TypedDict(
    "Sums",
    {
        "latency-per-token": float | None,
        "throughput": float | None,
        "total-tokens-handled": int,
        "total-elapsed-time": float,
        "since": float,
        "counts": dict[str, int],
        "batch-size": BatchSize,
        "padding-share": float | None,
        "model-share": float | None,
        "preemptions": int,
        "deferred-tokens": DeferredTokens,
        "prefix-cache": PrefixCache,
        "drafts": Drafts,
        "latency-by-num-tokens": list[LatencyByTokens],
        "by-class": dict[str, ClassFigures],
    },
)


class Figures(Sums, Latencies):
    pass


class Iterations(TypedDict):
    """The newest ones of the window, a list of `columns` each."""

    columns: list[str]
    kept: int
    dropped: int
    iterations: list[list[float]]


def figures(
    totals: Totals,
    since_unix_s: float,
    busy_s: float,
    in_flight: Mapping[str, int],
    newest: Sequence[RequestRecord],
) -> Figures:
    """Of a window. `in_flight`: waiting and running requests. `newest`: the newest completed
    requests."""
    completed, rows = totals.count("length", "stop"), totals.iterations
    return {
        "latency-per-token": _ratio(totals.latency_per_token_s, completed),
        "throughput": _ratio(totals.generated, busy_s),
        "total-tokens-handled": totals.generated,
        "total-elapsed-time": busy_s,
        "since": since_unix_s,
        "counts": {
            "received": totals.received,
            "completed": completed,
            "failed": totals.count("failed"),
            "cancelled": totals.count("cancelled") + totals.left,
            "rejected": totals.rejected,
            **in_flight,
        },
        "batch-size": {
            "mean": _ratio(sum(n * times for n, times in rows.items()), rows.total()),
            "max": max(rows, default=0),
            "histogram": {str(n): times for n, times in sorted(rows.items())},
        },
        "padding-share": _ratio(
            totals.positions - totals.tokens - totals.rejected_drafts, totals.positions
        ),
        "model-share": _ratio(totals.model_s, busy_s),
        "preemptions": totals.preemptions,
        "deferred-tokens": {
            "computed": totals.deferred_tokens,
            "generated": totals.deferred_generated,
        },
        "prefix-cache": {
            "looked-up-tokens": totals.looked_up_tokens,
            "hit-tokens": totals.hit_tokens,
        },
        "drafts": {"accepted": totals.accepted_drafts, "rejected": totals.rejected_drafts},
        **_latencies(newest),
        "latency-by-num-tokens": _by_tokens(newest),
        "by-class": {
            of: {
                "completed": totals.count("length", "stop", of=of),
                "failed": totals.count("failed", of=of),
                "cancelled": totals.count("cancelled", of=of),
                **_latencies([record for record in newest if record.service_class == of]),
            }
            for of in get_args(ServiceClass)
        },
    }


def _by_tokens(requests: Sequence[RequestRecord]) -> list[LatencyByTokens]:
    by_bucket: dict[int, list[float]] = {}
    for record in requests:
        bucket = -(-record.max_tokens // BUCKET_TOKENS) * BUCKET_TOKENS
        by_bucket.setdefault(bucket, []).append(record.latency_s)
    return [
        {
            "num_tokens": bucket,
            "n": len(latencies),
            "mean_s": float(np.mean(latencies)),
            "p90_s": float(np.percentile(latencies, 90)),
        }
        for bucket, latencies in sorted(by_bucket.items())
    ]


def _latencies(requests: Sequence[RequestRecord]) -> Latencies:
    return {
        "queue-s": _percentiles([r.queue_s for r in requests]),
        "ttft-s": _percentiles([r.ttft_s for r in requests]),
        "tpot-s": _percentiles([t for r in requests if (t := r.tpot_s) is not None]),
        "e2e-s": _percentiles([r.latency_s for r in requests]),
    }


def _percentiles(values: Sequence[float]) -> Percentiles:
    if not values:
        return {"p50": None, "p90": None, "p99": None, "n": 0}
    p50, p90, p99 = (float(p) for p in np.percentile(values, (50, 90, 99)))
    return {"p50": p50, "p90": p90, "p99": p99, "n": len(values)}


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
