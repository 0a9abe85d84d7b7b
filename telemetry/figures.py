"""The response of `/stats`, as types. `stats.py` computes it, `/openapi.json` shows it, and
docs/figures.md defines each figure. Times are in seconds."""

from __future__ import annotations

from typing_extensions import TypedDict


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


class LatencyByTokens(TypedDict):
    num_tokens: int
    n: int
    mean_s: float
    p90_s: float


class Ended(TypedDict):
    completed: int
    failed: int
    cancelled: int


Totals = TypedDict(
    "Totals",
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
    },
)
Latencies = TypedDict(
    "Latencies",
    {"queue-s": Percentiles, "ttft-s": Percentiles, "tpot-s": Percentiles, "e2e-s": Percentiles},
)


class ClassFigures(Ended, Latencies):
    pass


Groups = TypedDict(
    "Groups",
    {"latency-by-num-tokens": list[LatencyByTokens], "by-class": dict[str, ClassFigures]},
)


class Figures(Totals, Latencies, Groups):
    pass


class Iterations(TypedDict):
    """The newest ones of the window, a list of `columns` each."""

    columns: list[str]
    kept: int
    dropped: int
    iterations: list[list[float]]
