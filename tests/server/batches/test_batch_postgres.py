"""Servers that share their jobs through PostgreSQL, and a database that goes away."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.deferred.postgres import Postgres
from tests.support.hash_app import STEP_S
from tests.support.official import (
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
from tests.support.process import Server, eventually, serving

TOKENS = 10


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    try:
        server = Postgres()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    yield server
    server.close()


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
