"""The cost of batches that ended long ago for a server that checks its job store each second.

    python -m benchmarks.store.history                           # SQLite, in a folder of its own
    python -m benchmarks.store.history --database postgresql://… # an empty database

Measured without and with many ended batches, each with an output file: the queries behind `/stats`
and `/metrics` (`progress`), and the recurring queries of an idle server. Then the time to remove
the batches."""

from __future__ import annotations

import argparse
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import insert

from deferred.store import JobStore, open_store
from deferred.store.history import add_to_totals
from deferred.store.schema import batches, files

MODEL = WORKER = "benchmark"
DAY_S = 24 * 3600.0
ROWS = 5000  # an insert
LINES = 10  # of a batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=50_000)
    parser.add_argument("--times", type=int, default=200, help="measurements of each query")
    parser.add_argument("--database", help="a URL; default: SQLite in a temporary folder")
    parser.add_argument("--folder", type=Path, help="folder of the temporary files")
    parser.add_argument("--out", type=Path, help="folder to keep the card and the figures in")
    args = parser.parse_args()
    from benchmarks.common import save  # imports torch, which the store's tests avoid

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


def add_history(store: JobStore, count: int, ended_s: float) -> None:
    """So many batches that ended then, all lines completed, each with an output file."""
    database = store._database
    for first in range(0, count, ROWS):
        names = [secrets.token_hex(12) for _ in range(min(ROWS, count - first))]
        with database.write(durable=False) as connection:
            connection.execute(insert(files), [_output(name, ended_s) for name in names])
            rows = connection.execute(
                insert(batches).returning(batches), [_ended(name, ended_s) for name in names]
            ).all()
            add_to_totals(database, connection, rows, 1)


def _output(name: str, ended_s: float) -> dict[str, object]:
    return {
        "id": f"file-{name}",
        "owner": "",
        "purpose": "batch_output",
        "filename": f"batch_{name}_output.jsonl",
        "state": "ready",
        "size_bytes": 0,
        "sha256": "",
        "created_at": ended_s,
        "expires_at": ended_s + DAY_S,
    }


def _ended(name: str, ended_s: float) -> dict[str, object]:
    return {
        "id": f"batch_{name}",
        "owner": "",
        "input_file": 0,
        "input_file_id": "file-",
        "endpoint": "/v1/completions",
        "model": MODEL,
        "completion_window": "24h",
        "status": "completed",
        "outcome": "completed",
        "created_at": ended_s,
        "expires_at": ended_s + DAY_S,
        "in_progress_at": ended_s,
        "finalizing_at": ended_s,
        "completed_at": ended_s,
        "ended_at": ended_s,
        "planned_output_id": f"file-{name}",
        "planned_error_id": "file-",
        "output_file_id": f"file-{name}",
        "total": LINES,
        "completed": LINES,
        "swept": 1,
    }


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
        f"{kind}: the cost of ended batches each second",
        "",
        "| | ended batches | median, ms | p99, ms |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, by_history in figures.items():
        for history, (median_ms, p99_ms) in by_history.items():
            rows.append(f"| {name} | {history} | {median_ms:.2f} | {p99_ms:.2f} |")
    return "\n".join([*rows, "", f"Removing them took {removal_s:.1f} s."])


if __name__ == "__main__":
    main()
