"""A process that works on a store until it is killed:
python -m tests.deferred.store.doomed FOLDER TASK.

It says each step on a line of its output, and continues when it is given a line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from deferred.entities import NewItem, Result, Unrun
from deferred.store import JobStore, open_store
from tests.deferred.jobs import MODEL, NOW_S, WORKER, new_items, result, unrun

LINES = 1200


def say(step: str) -> None:
    print(step, flush=True)
    sys.stdin.readline()


def validate(store: JobStore) -> None:
    batch = store.batches.claim_validation(WORKER, MODEL, NOW_S)
    if batch is None:
        return

    def told() -> Iterator[NewItem]:
        for item in new_items(LINES):
            say(f"line {item.line}")
            yield item

    store.items.add(batch.id, WORKER, told())
    store.batches.start(batch.id, WORKER, NOW_S)


def work_off(store: JobStore) -> None:
    while items := store.items.claim(WORKER, MODEL, 50, NOW_S):
        say(f"claimed {len(items)}")
        results = [result(item, item.line % 5 != 0) for item in items]
        counted = store.items.save(
            WORKER, [Result(r.lease, r.succeeded, r.text + b" " * 2000) for r in results]
        )
        say(f"recorded {counted}")


def finalise(store: JobStore) -> None:
    def told(batch_id: str, line: int, custom_id: str, why: Unrun) -> bytes:
        say(f"unrun {line}")
        return unrun(batch_id, line, custom_id, why)

    batch = store.batches.claim_finalisation(WORKER, NOW_S)
    if batch is not None:
        store.batches.finalise(batch.id, WORKER, NOW_S, told)


if __name__ == "__main__":
    TASKS = {"validate": validate, "work_off": work_off, "finalise": finalise}
    store = open_store(Path(sys.argv[1]))
    TASKS[sys.argv[2]](store)
    say("done")
