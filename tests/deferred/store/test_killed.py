"""SIGKILL in the middle of each long step of a store on SQLite, then another process continues.

As a command, `python -m tests.deferred.store.test_killed FOLDER TASK`, this is the process that is
killed. It says each step on a line of its output, and continues when it is given a line."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
)  # fmt: skip

ROOT = Path(__file__).parents[3]
LINES = 1200
RECORDED = 50 * (9 + 11)  # before the two kills


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


def run_until(folder: Path, task: str, step: str, times: int = 1) -> None:
    """Runs the task until it has said the step so many times, and kills it there and then."""
    command = [sys.executable, "-m", "tests.deferred.store.test_killed", str(folder), task]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    said = 0
    for line in process.stdout:
        said += line.strip() == step
        if said == times:
            break
        process.stdin.write("\n")
        process.stdin.flush()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert said == times, f"{task} never said {step!r} {times} times"


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ([501], [101]),
        pytest.param([1, 501, LINES], [1, 101, LINES - RECORDED], marks=pytest.mark.long),
    ],
)
def test_a_job_killed_in_every_phase_ends_with_each_line_once(
    data_dir: Path, read: list[int], written: list[int]
) -> None:
    """At those lines while they are validated, twice while they run, and at those of the lines that
    were not run while the files are written."""
    store = open_store(data_dir)
    batch = create(store)
    store.close()

    for line in read:
        run_until(data_dir, "validate", f"line {line}")
        store = open_store(data_dir)
        assert store.batches.get(OWNER, batch.id) == batch
        store.close()
    run_until(data_dir, "validate", "done")

    run_until(data_dir, "work_off", "recorded 50", times=9)
    run_until(data_dir, "work_off", "claimed 50", times=12)
    store = open_store(data_dir)
    counts = store.batches.get(OWNER, batch.id).counts
    assert (counts.total, counts.completed + counts.failed) == (LINES, RECORDED)
    assert store.progress().items["running"] == 0
    assert store.batches.end_due(batch.expires_at) == 1
    store.close()

    for line in written:
        run_until(data_dir, "finalise", f"unrun {RECORDED + line}")
        store = open_store(data_dir)
        assert store.batches.get(OWNER, batch.id).output_file_id is None
        assert len(store.files.list(OWNER, NOW_S).data) == 1
        store.close()
    run_until(data_dir, "finalise", "done")

    store = open_store(data_dir)
    ended = store.batches.get(OWNER, batch.id)
    assert ended.status == "expired"
    output = ids(lines_of(store, OWNER, ended.output_file_id))
    error = ids(lines_of(store, OWNER, ended.error_file_id))
    assert len(output) == ended.counts.completed == counts.completed
    assert len(error) == ended.counts.failed + ended.counts.expired
    assert sorted(output + error) == sorted(f"id-{line}" for line in range(1, LINES + 1))
    while store.sweep(NOW_S, 0.0).unfinished:
        pass
    store.close()


if __name__ == "__main__":
    opened = open_store(Path(sys.argv[1]))
    {"validate": validate, "work_off": work_off, "finalise": finalise}[sys.argv[2]](opened)
    say("done")
