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

TOKENS = 6


def test_a_cancelled_job_keeps_what_was_answered(server: Server) -> None:
    client = official(server)
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


def test_the_official_clients_pages_hold_all_files_and_batches(server: Server) -> None:
    client = official(server)
    ids = [submitted(client, [line(0, max_tokens=1)]).id for _ in range(3)]
    for id in ids:
        ended(client, id)
    listed = [batch.id for batch in client.batches.list(limit=1)]
    assert listed[:3] == ids[::-1]
    files = [file.id for file in client.files.list(limit=1, order="asc")]
    assert len(set(files)) == len(files) >= 6
    assert client.files.wait_for_processing(files[0]).status == "processed"
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


def test_a_second_server_on_the_same_data_reports_it_and_continues_to_serve(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        client = official(first)
        batch = submitted(client, [line(0, max_tokens=1)])
        ended(client, batch.id)
        with serving(tmp_path) as second:
            with pytest.raises(openai.InternalServerError) as refused:
                official(second).files.list()
            assert refused.value.status_code == 503
            assert "Retry-After" in refused.value.response.headers
            assert str(tmp_path) not in str(refused.value)
            assert second.ask().status_code == 200
            assert "DATA_DIR" in second.log
            first.process.send_signal(signal.SIGTERM)
            first.process.wait(60)
            # it takes over without being asked
            eventually(lambda: jobs_of(second)["store"] == "open", "the Batch API to be on")
            assert official(second).batches.retrieve(batch.id).status == "completed"


def test_a_disk_that_is_full_harms_no_immediate_request_and_loses_nothing(tmp_path: Path) -> None:
    """No file of the server may grow beyond 4 MB, which is how the database meets a full disk."""
    limited = ["prlimit", f"--fsize={4 * 2**20}", "--"]
    big = [line(n, prompt="p" * 20_000, max_tokens=1) for n in range(400)]  # 8 MB, refused anyway
    port = free_port()
    with serving(tmp_path, prefix=limited, port=port) as server:
        client = official(server)
        batch = submitted(client, [line(n, max_tokens=TOKENS) for n in range(20)])
        batch = ended(client, batch.id)
        with pytest.raises(openai.InternalServerError) as refused:
            submitted(client, big)
        assert refused.value.status_code == 503
        assert refused.value.code == "store_unavailable"
        assert server.ask().status_code == 200
        output, _ = outcome(client, client.batches.retrieve(batch.id), 20)
        require_answers(output, TOKENS)
    with serving(tmp_path, port=port) as server:
        client = official(server)
        assert outcome(client, client.batches.retrieve(batch.id), 20)[0].keys() == output.keys()
        assert ended(client, submitted(client, big).id).status == "completed"
