"""SIGKILL in the middle of each long step of a store on SQLite, then another process continues."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

from deferred.entities import NewItem, Result, Unrun
from deferred.store import JobStore, open_store
from tests.deferred.jobs import (
    MODEL,
    NOW_S,
    OWNER,
    WORKER,
    create,
    ids,
    lines_of,
    new_items,
    result,
    unrun,
)

LINES = 1200
RECORDED = 50 * (9 + 11)  # before the two kills
Step = Callable[[str], None]


def validate(store: JobStore, step: Step) -> None:
    batch = store.batches.claim_validation(WORKER, MODEL, NOW_S)
    assert batch is not None

    def told() -> Iterator[NewItem]:
        for item in new_items(LINES):
            step(f"line {item.line}")
            yield item

    store.items.add(batch.id, WORKER, told())
    store.batches.start(batch.id, WORKER, NOW_S)


def work_off(store: JobStore, step: Step) -> None:
    while items := store.items.claim(WORKER, MODEL, 50, NOW_S):
        step("claimed")
        results = [result(item, item.line % 5 != 0) for item in items]
        store.items.save(
            WORKER, [Result(r.lease, r.succeeded, r.text + b" " * 2000) for r in results]
        )
        step("recorded")


def finalise(store: JobStore, step: Step) -> None:
    def told(batch_id: str, line: int, custom_id: str, why: Unrun) -> bytes:
        step(f"unrun {line}")
        return unrun(batch_id, line, custom_id, why)

    batch = store.batches.claim_finalisation(WORKER, NOW_S)
    assert batch is not None
    store.batches.finalise(batch.id, WORKER, NOW_S, told)


Task = Callable[[JobStore, Step], None]


def killed_at(folder: Path, task: Task, step: str, times: int = 1) -> JobStore:
    """The store as another process finds it, after one that ran the task was killed when it had
    come to the step so many times."""
    process = multiprocessing.get_context("spawn").Process(
        target=run, args=(folder, task, step, times)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, f"it never came to {step!r} {times} times"
    return open_store(folder)


def run(folder: Path, task: Task, last: str, times: int) -> None:
    come = 0

    def step(name: str) -> None:
        nonlocal come
        come += name == last
        if come == times:
            os.kill(os.getpid(), signal.SIGKILL)

    task(open_store(folder), step)


def test_a_job_killed_in_every_phase_ends_with_each_line_once(data_dir: Path) -> None:
    store = open_store(data_dir)
    batch = create(store)
    store.close()

    store = killed_at(data_dir, validate, "line 501")
    assert store.batches.get(OWNER, batch.id) == batch
    validate(store, lambda step: None)
    store.close()

    killed_at(data_dir, work_off, "recorded", times=9).close()
    store = killed_at(data_dir, work_off, "claimed", times=12)
    counts = store.batches.get(OWNER, batch.id).counts
    assert (counts.total, counts.completed + counts.failed) == (LINES, RECORDED)
    assert store.progress().items["running"] == 0
    assert store.batches.end_due(batch.expires_at) == 1
    store.close()

    store = killed_at(data_dir, finalise, f"unrun {RECORDED + 101}")
    assert store.batches.get(OWNER, batch.id).output_file_id is None
    assert len(store.files.list(OWNER, NOW_S).data) == 1
    finalise(store, lambda step: None)
    ended = store.batches.get(OWNER, batch.id)
    assert ended.status == "expired"
    output = ids(lines_of(store, OWNER, ended.output_file_id))
    error = ids(lines_of(store, OWNER, ended.error_file_id))
    assert len(output) == ended.counts.completed == counts.completed
    assert len(error) == ended.counts.failed + ended.counts.expired
    assert sorted(output + error) == sorted(f"id-{line}" for line in range(1, LINES + 1))
    store.close()
