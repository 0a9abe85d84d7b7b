"""Jobs outlive their server's death at any moment: each request has one answer, the right one."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from tests.support.hash_app import STEP_S
from tests.support.official import (
    FINAL,
    done,
    ended,
    line,
    official,
    outcome,
    reached,
    require_answers,
    submitted,
)
from tests.support.process import Server, free_port, serving

TOKENS = 6
LONG_TOKENS = 900  # of the last line: the job has not ended when all others have
STEPS = {STEP_S: 0.004}
Moment = Callable[[Batch], bool]


def kill(server: Server) -> None:
    """All at once, as a loss of power would; nothing can be caught."""
    os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()


def killed_at(server: Server, batch_id: str, moment: Moment) -> bool:
    """Kills it at the moment; False where the job had ended before."""
    batch = reached(official(server), batch_id, moment, "the moment of the kill")
    kill(server)
    return batch.status not in FINAL


def answered(count: int) -> Moment:
    return lambda batch: done(batch) >= count


def require_whole(client: OpenAI, batch_id: str, total: int) -> None:
    batch = ended(client, batch_id)
    assert batch.status == "completed"
    output, errors = outcome(client, batch, total)
    assert not errors
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": total, "completed": total, "failed": 0}
    assert batch.usage is not None
    usages = [one["response"]["body"]["usage"] for one in output.values()]
    assert batch.usage.output_tokens == sum(usage["completion_tokens"] for usage in usages)
    last = output.pop(f"id {total - 1}")
    assert last["response"]["body"]["usage"]["completion_tokens"] == LONG_TOKENS
    require_answers(output, TOKENS)
    files = {file.id for file in client.files.list()}
    assert files == {batch.input_file_id, batch.output_file_id}


@contextlib.contextmanager
def files_written_without_end(folder: Path) -> Iterator[None]:
    """Who writes a piece of a file meanwhile is not done with it before it is killed. No server
    runs at the beginning and at the end."""
    with changing(folder) as jobs:
        jobs.execute(
            "CREATE VIEW endless AS WITH RECURSIVE numbers(n) AS "
            "(SELECT 1 UNION ALL SELECT n + 1 FROM numbers) SELECT n FROM numbers"
        )
        jobs.execute(
            "CREATE TRIGGER hold BEFORE INSERT ON file_chunks "
            "BEGIN SELECT count(*) FROM endless; END"
        )
    yield
    with changing(folder) as jobs:
        jobs.execute("DROP TRIGGER hold")
        jobs.execute("DROP VIEW endless")


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(folder / "data" / "jobs.db")) as jobs, jobs:
        yield jobs


def killed_again_and_again(folder: Path, total: int, moments: list[Moment]) -> None:
    """At each of the moments, of which the first is that after the job was submitted, and then
    while its files are written."""
    port = free_port()
    with serving(folder, "dynamic", STEPS, port=port, max_batch_size=4) as server:
        lines = [line(number, max_tokens=TOKENS) for number in range(total - 1)]
        lines.append(line(total - 1, max_tokens=LONG_TOKENS, ignore_eos=True))
        batch_id = submitted(official(server), lines).id
        assert killed_at(server, batch_id, moments[0])
    for moment in moments[1:]:
        with serving(folder, "dynamic", STEPS, port=port, max_batch_size=4) as server:
            assert killed_at(server, batch_id, moment)
    with (
        files_written_without_end(folder),
        serving(folder, "dynamic", STEPS, port=port, max_batch_size=4) as server,
    ):
        assert killed_at(server, batch_id, lambda batch: batch.status == "finalizing")
    with serving(folder, "dynamic", STEPS, port=port, max_batch_size=4) as server:
        require_whole(official(server), batch_id, total)


def test_a_job_whose_server_is_killed_twice_is_answered_once(tmp_path: Path) -> None:
    killed_again_and_again(tmp_path, 100, [answered(30)])


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_job_of_2000_lines_outlives_twenty_kills(tmp_path: Path) -> None:
    total, rng = 2000, random.Random(1)
    points = sorted(rng.randrange(total) for _ in range(18))
    begun: list[Moment] = [lambda _: True, lambda batch: batch.status != "validating"]
    killed_again_and_again(tmp_path, total, [*begun, *map(answered, points)])


@pytest.mark.parametrize("after_bytes", [pytest.param(0, marks=pytest.mark.long), 100_000])
def test_an_upload_whose_server_is_killed_leaves_nothing(tmp_path: Path, after_bytes: int) -> None:
    port = free_port()
    with serving(tmp_path, port=port) as server:
        kept = official(server).files.create(file=("kept", b"kept"), purpose="batch")

        class Dying:
            """A file whose reader dies with the server."""

            name = "dying"
            left = 3 * 2**20

            def read(self, size: int = -1) -> bytes:
                if self.left <= after_bytes and server.process.poll() is None:
                    kill(server)
                size = min(self.left, 64 * 1024 if size < 0 else size)
                self.left -= size
                return b"x" * size

        with contextlib.suppress(openai.APIConnectionError):
            official(server).files.create(file=("dying", Dying()), purpose="batch")  # type: ignore[arg-type]
    with serving(tmp_path, port=port) as server:
        client = official(server)
        assert [file.id for file in client.files.list()] == [kept.id]
        assert client.files.content(kept.id).read() == b"kept"
