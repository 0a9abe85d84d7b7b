"""Jobs outlive their server's death at any moment, and share a database that may go away: each
request has one answer, the right one."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import openai
import pytest

from tests.support.official import (
    FINAL,
    done,
    ended,
    jobs_of,
    line,
    official,
    outcome,
    reached,
    require_answers,
    submitted,
)
from tests.support.postgres import Postgres
from tests.support.process import Server, eventually, free_port, serving

TOKENS = 6
LONG_TOKENS = 900  # of the last line: the job has not ended when all others have


def kill(server: Server) -> None:
    """All at once, as a loss of power would; nothing can be caught."""
    os.killpg(server.process.pid, signal.SIGKILL)
    server.process.wait()


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(folder / "data" / "jobs.db")) as jobs, jobs:
        yield jobs


def test_a_job_whose_server_is_killed_amid_its_lines_and_its_files_is_answered_once(
    tmp_path: Path,
) -> None:
    """Who writes a piece of a file is not done with it before it is killed."""
    total, port = 100, free_port()

    def served() -> AbstractContextManager[Server]:
        return serving(tmp_path, "dynamic", {"step_s": 0.004}, port=port, max_batch_size=4)

    with served() as server:
        lines = [line(number, max_tokens=TOKENS) for number in range(total - 1)]
        lines.append(line(total - 1, max_tokens=LONG_TOKENS, ignore_eos=True))
        batch_id = submitted(official(server), lines).id
        batch = reached(official(server), batch_id, lambda batch: done(batch) >= 30, "30 answers")
        kill(server)
        assert batch.status not in FINAL
    with changing(tmp_path) as jobs:
        jobs.execute(
            "CREATE VIEW endless AS WITH RECURSIVE numbers(n) AS "
            "(SELECT 1 UNION ALL SELECT n + 1 FROM numbers) SELECT n FROM numbers"
        )
        jobs.execute(
            "CREATE TRIGGER hold BEFORE INSERT ON file_chunks "
            "BEGIN SELECT count(*) FROM endless; END"
        )
    with served() as server:
        client = official(server)
        batch = reached(client, batch_id, lambda batch: batch.status == "finalizing", "its files")
        kill(server)
        assert batch.status not in FINAL
    with changing(tmp_path) as jobs:
        jobs.execute("DROP TRIGGER hold")
        jobs.execute("DROP VIEW endless")
    with served() as server:
        client = official(server)
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


def test_an_upload_whose_server_is_killed_leaves_nothing(tmp_path: Path) -> None:
    port = free_port()
    with serving(tmp_path, port=port) as server:
        kept = official(server).files.create(file=("kept", b"kept"), purpose="batch")

        class Dying:
            """A file whose reader dies with the server."""

            name = "dying"
            left = 3 * 2**20

            def read(self, size: int = -1) -> bytes:
                if self.left <= 100_000 and server.process.poll() is None:
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


def test_a_server_that_shuts_down_returns_its_lines(tmp_path: Path) -> None:
    """It ends with status 0 though the job is unfinished; its successor continues."""
    port = free_port()
    with serving(tmp_path, "dynamic", {"step_s": 0.02}, max_batch_size=2, port=port) as server:
        client = official(server)
        lines = [line(n, max_tokens=200, ignore_eos=True) for n in range(30)]
        lines += [line(n, max_tokens=1) for n in range(30, 40)]
        batch = submitted(client, lines)
        eventually(lambda: jobs_of(server).get("items", {}).get("running", 0) > 0, "running lines")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert "lines were not returned" not in server.log
    with serving(tmp_path, "dynamic", max_batch_size=16, port=port) as server:
        client = official(server)
        batch = ended(client, batch.id)
        output, errors = outcome(client, batch, 40)
        assert not errors
        assert len(output) == 40
        assert client.batches.retrieve(batch.id).status == "completed"


def test_a_database_that_is_gone_at_the_start_and_later_costs_nothing_but_time(
    postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.new_database()
    lines = [line(number, max_tokens=TOKENS) for number in range(80)]
    postgres.stop()
    try:
        with serving(
            tmp_path, "dynamic", {"step_s": 0.002}, max_batch_size=2, database_url=url
        ) as server:
            client = official(server)
            require_none(server)
            postgres.start()
            eventually(lambda: jobs_of(server)["store"] == "open", "the Batch API to be on")
            batch = submitted(client, lines)
            reached(client, batch.id, lambda batch: done(batch) > 0, "a first answer")
            postgres.stop()
            require_none(server)
            eventually(lambda: jobs_of(server)["store"] == "unavailable", "/stats to say so")
            assert server.health() == 200
            postgres.start()
            batch = ended(client, batch.id)
            assert batch.status == "completed"
            output, errors = outcome(client, batch, len(lines))
            assert not errors
            require_answers(output, TOKENS)
    finally:
        postgres.start()


def require_none(server: Server) -> None:
    """Jobs are refused, immediate requests are not."""
    with pytest.raises(openai.InternalServerError) as refused:
        official(server).files.list()
    assert refused.value.status_code == 503
    assert refused.value.code == "store_unavailable"
    assert server.ask().status_code == 200
