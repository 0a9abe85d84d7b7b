"""The Batch API over real sockets, by OpenAI's official client."""

from __future__ import annotations

import signal
from pathlib import Path

import openai
import pytest

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
from tests.support.process import Server, eventually, free_port, serving


def test_a_cancelled_job_keeps_what_was_answered(server: Server) -> None:
    client = official(server)
    first = ended(client, submitted(client, [line(0, max_tokens=1)]).id)
    batch = submitted(client, [line(n, max_tokens=20) for n in range(300)])
    reached(client, batch.id, lambda batch: done(batch) > 0, "a first answer")
    cancelling = client.batches.cancel(batch.id)
    assert cancelling.status == "cancelling"
    assert cancelling.cancelling_at is not None
    batch = ended(client, batch.id)
    assert batch.status == "cancelled"
    assert batch.cancelled_at is not None
    output, errors = outcome(client, batch, 300)
    assert output
    assert errors
    require_answers(output, 20)
    assert {one["error"]["code"] for one in errors.values()} == {"batch_cancelled"}
    assert {one["response"] for one in errors.values()} == {None}
    assert [one.id for one in client.batches.list(limit=1)][:2] == [batch.id, first.id]
    files = [one.id for one in client.files.list(limit=1, order="asc")]
    assert len(set(files)) == len(files) >= 5
    assert client.files.delete(files[0]).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(files[0])


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
