"""The cost of batches that ended long ago for a server that checks its job store each second.

    python -m benchmarks.store.history                           # SQLite, in a folder of its own
    python -m benchmarks.store.history --database postgresql://… # an empty database

Measured without and with many ended batches, each with an output file: the queries behind `/stats`
and `/metrics` (`progress`), and the recurring queries of an idle server. Then the time to remove
the batches."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness.report import options, save, table
from benchmarks.store.ended import DAY_S, MODEL, add_history
from deferred.store import JobStore, open_store

WORKER = "benchmark"


def main() -> None:
    parser = options(__doc__, rounds=None)
    parser.add_argument("--batches", type=int, default=50_000)
    parser.add_argument("--times", type=int, default=200, help="measurements of each query")
    parser.add_argument("--database", help="a URL; default: SQLite in a temporary folder")
    parser.add_argument("--folder", type=Path, help="folder of the temporary files")
    args = parser.parse_args()

    works: dict[str, Callable[[JobStore], object]] = {
        "progress": JobStore.progress,
        "an idle second": idle_second,
    }
    figures: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in works}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        store = open_store(args.database or folder)
        for history in (0, args.batches):
            add_history(store, history, time.time())
            for name, work in works.items():
                figures[name][str(history)] = measure(store, work, args.times)
        start_s = time.perf_counter()
        while store.sweep(time.time(), time.time()).unfinished:
            pass
        removal_s = time.perf_counter() - start_s
        store.close()
    kind = "PostgreSQL" if args.database else "SQLite"
    report = {"database": kind, "ended": args.batches, "ms": figures, "removal_s": removal_s}
    save(report, card(kind, figures, removal_s), args.out, f"history-{kind.lower()}")


def idle_second(store: JobStore) -> None:
    """The queries of a server without jobs, the rarer ones included."""
    now_s = time.time()
    store.batches.end_due(now_s)
    store.batches.claim_validation(WORKER, MODEL, now_s)
    store.batches.claim_finalisation(WORKER, now_s)
    store.sweep(now_s, now_s - 30 * DAY_S)
    store.progress()
    store.items.claim(WORKER, MODEL, 8, now_s)
    store.items.heartbeat(WORKER, [], now_s)
    store.items.recover(now_s)


def measure(store: JobStore, work: Callable[[JobStore], object], times: int) -> tuple[float, float]:
    """The median and the 99th percentile, in ms."""
    work(store)  # statements are compiled once
    taken_ms = []
    for _ in range(times):
        start_s = time.perf_counter()
        work(store)
        taken_ms.append((time.perf_counter() - start_s) * 1e3)
    return statistics.median(taken_ms), statistics.quantiles(taken_ms, n=100)[98]


def card(kind: str, figures: dict[str, dict[str, tuple[float, float]]], removal_s: float) -> str:
    rows = [
        (name, history, f"{median_ms:.2f}", f"{p99_ms:.2f}")
        for name, by_history in figures.items()
        for history, (median_ms, p99_ms) in by_history.items()
    ]
    return (
        f"{kind}: the cost of ended batches each second\n\n"
        f"{table('| ended batches: | median, ms: | p99, ms:', rows)}\n\n"
        f"Removing them took {removal_s:.1f} s."
    )


if __name__ == "__main__":
    main()
