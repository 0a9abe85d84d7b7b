"""Jobs outlive their server's death at any moment, and share a database that may go away: each
request has one answer, the right one."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from tests.support.hash_app import STEP_S
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


def test_a_server_that_shuts_down_returns_its_lines(tmp_path: Path) -> None:
    """It ends with status 0 though the job is unfinished; its successor continues."""
    port = free_port()
    with serving(tmp_path, "dynamic", {STEP_S: 0.02}, max_batch_size=2, port=port) as server:
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


def completed(server: Server) -> int:
    return server.counts()["completed"]


def test_two_servers_share_a_job_and_one_may_leave(postgres: Postgres, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_batch_size": 2, "database_url": postgres.new_database()}
    steps = {STEP_S: 0.005}
    lines = [line(number, max_tokens=TOKENS) for number in range(80)]
    # the job has not ended when all others have
    lines.append(line(80, max_tokens=900, ignore_eos=True))
    with serving(tmp_path, "dynamic", steps, **options) as one:
        with serving(tmp_path, "dynamic", steps, **options) as two:
            batch = submitted(official(one), lines)
            eventually(lambda: completed(one) > 0 and completed(two) > 0, "both to take part")
            # every server knows all of it
            assert official(two).batches.retrieve(batch.id).status == "in_progress"
            two.process.send_signal(signal.SIGTERM)
            assert two.process.wait(60) == 0
        client = official(one)
        batch = ended(client, batch.id)
        assert batch.status == "completed"
        output, errors = outcome(client, batch, len(lines))
        assert not errors
        del output["id 80"]
        require_answers(output, TOKENS)


def test_a_database_that_is_gone_at_the_start_and_later_costs_nothing_but_time(
    postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.new_database()
    lines = [line(number, max_tokens=TOKENS) for number in range(80)]
    postgres.stop()
    try:
        with serving(
            tmp_path, "dynamic", {STEP_S: 0.002}, max_batch_size=2, database_url=url
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
