"""SIGKILL in the middle of each long step of a store on SQLite, then another process continues."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from deferred.store import open_store
from tests.deferred.jobs import NOW_S, OWNER, create, ids, lines_of
from tests.deferred.store.doomed import LINES

ROOT = Path(__file__).parents[3]
RECORDED = 50 * (9 + 11)  # before the two kills


def run_until(folder: Path, task: str, step: str, times: int = 1) -> None:
    """Runs the task until it has said the step so many times, and kills it there and then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.deferred.store.doomed", str(folder), task],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
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
