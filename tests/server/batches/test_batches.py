"""The Batch API over real sockets, by OpenAI's official client."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from serving.config import MODES
from tests.support.hash_app import FAIL_ON, STEP_S
from tests.support.official import (
    done,
    ended,
    expected,
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


@pytest.fixture(scope="module", params=MODES)
def any_mode(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("batches")
    with serving(folder, request.param, {STEP_S: 0.001}, max_batch_size=8, max_wait_ms=5) as server:
        yield server


def test_every_mode_completes_a_job_alongside_immediate_requests(any_mode: Server) -> None:
    client = official(any_mode)
    batch = submitted(client, [line(n, max_tokens=TOKENS) for n in range(40)])
    assert batch.status == "validating"
    for number in range(5):
        answer = client.completions.create(
            model="embedded", prompt=f"line {number}", max_tokens=TOKENS, temperature=0
        )
        assert answer.choices[0].text == expected(number, TOKENS)
    batch = ended(client, batch.id)
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 40, "completed": 40, "failed": 0}
    output, errors = outcome(client, batch, 40)
    assert not errors
    require_answers(output, TOKENS)
    assert batch.usage is not None
    assert batch.usage.output_tokens == sum(
        one["response"]["body"]["usage"]["completion_tokens"] for one in output.values()
    )
    any_mode.reaches(waiting=0, running=0)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(
        tmp_path_factory.mktemp("slow"),
        "dynamic",
        {STEP_S: 0.005},
        max_batch_size=4,
        api_key="a,b,c",
        min_completion_window=1,
    ) as server:
        yield server


def test_a_cancelled_job_keeps_what_was_answered(slow: Server) -> None:
    client = official(slow, api_key="a")
    batch = submitted(client, [line(n, max_tokens=20, ignore_eos=True) for n in range(300)])
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


def running(server: Server) -> int:
    lines: int = jobs_of(server).get("items", {}).get("running", 0)
    return lines


def test_the_official_clients_pages_hold_all_files_and_batches(slow: Server) -> None:
    client = official(slow, api_key="c")
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


def test_a_failed_generation_is_tried_three_times_and_then_a_500(tmp_path: Path) -> None:
    failing: Any = {FAIL_ON: "1,2,3,5,8"}  # iterations: of the first job all, of the second some
    with serving(tmp_path, "dynamic", failing) as server:
        client = official(server)
        batch = ended(client, submitted(client, [line(0, max_tokens=5)]).id)
        assert batch.status == "completed"
        _, errors = outcome(client, batch, 1)
        response = errors["id 0"]["response"]
        assert response["status_code"] == 500
        assert response["body"]["error"]["type"] == "server_error"
        batch = ended(client, submitted(client, [line(n, max_tokens=5) for n in range(8)]).id)
        output, errors = outcome(client, batch, 8)
        assert not errors
        require_answers(output, 5)


def test_a_server_that_shuts_down_returns_its_lines(tmp_path: Path) -> None:
    """It ends with status 0 though the job is unfinished; its successor continues."""
    port = free_port()
    with serving(tmp_path, "dynamic", {STEP_S: 0.02}, max_batch_size=2, port=port) as server:
        client = official(server)
        lines = [line(n, max_tokens=200, ignore_eos=True) for n in range(30)]
        lines += [line(n, max_tokens=1) for n in range(30, 40)]
        batch = submitted(client, lines)
        eventually(lambda: running(server) > 0, "running lines")
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
