"""`/v1/batches`: what a batch may be, its errors by line, its answers, pages and owners."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from openai.types.responses import Response
from werkzeug.test import TestResponse

from generate.modes import ModeName
from seams import Outcome
from serving.config import MODES, Config
from tests.api.conftest import TWO, client_of, held_at, serving
from tests.api.jobs.test_files import error_of, got, upload
from tests.support.dialects import PATHS
from tests.support.hash_model import HashModel, ScriptedModel
from tests.support.openai_calls import alike
from tests.support.process import eventually

Json = dict[str, Any]
COMPLETIONS, CHAT, RESPONSES = PATHS[1:4]
USER = [{"role": "user", "content": "hello"}]
EXPIRY: Json = {"anchor": "created_at"}


def line(number: int, **changes: Any) -> Json:
    body = {"model": "embedded", "prompt": f"line {number}", "max_tokens": 4, "seed": number}
    envelope = {"custom_id": f"id {number}", "method": "POST", "url": COMPLETIONS, "body": body}
    return {**envelope, **changes}


def jsonl(*lines: Json | str) -> bytes:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    return "".join(f"{text}\n" for text in texts).encode()


def create(client: FlaskClient, file_id: str, **fields: Any) -> TestResponse:
    asked = {"input_file_id": file_id, "endpoint": COMPLETIONS, "completion_window": "24h"}
    headers = fields.pop("headers", {})
    return client.post("/v1/batches", json={**asked, **fields}, headers=headers)


def file_of(client: FlaskClient, content: bytes) -> str:
    id: str = upload(client, content).get_json()["id"]
    return id


def run(client: FlaskClient, *lines: Json | str, **fields: Any) -> Json:
    """Until the batch has ended."""
    answer = create(client, file_of(client, jsonl(*lines)), **fields)
    assert answer.status_code == 200
    return reached(client, answer.get_json()["id"], "completed", "failed", "expired", "cancelled")


def reached(client: FlaskClient, id: str, *statuses: str, answered: int = 0) -> Json:
    """The batch as soon as it has one of these statuses, and so many answers."""
    batches: list[Json] = []

    def holds() -> bool:
        batches.append(got(client, f"/v1/batches/{id}"))
        completed = batches[-1]["request_counts"]["completed"]
        return batches[-1]["status"] in statuses and completed >= answered

    eventually(holds, f"one of {statuses}")
    return batches[-1]


def answers(client: FlaskClient, file_id: str | None) -> dict[str, Json]:
    """By custom_id."""
    if file_id is None:
        return {}
    told = client.get(f"/v1/files/{file_id}/content").data
    return {one["custom_id"]: one for one in map(json.loads, told.splitlines())}


RESPONSE: Json = {"input": "x", "max_output_tokens": 9}


@pytest.mark.parametrize(
    ("url", "bodies"),
    [
        (COMPLETIONS, [
            {"prompt": "two choices", "max_tokens": 5, "n": 2, "seed": 3},
            {"prompt": ["several", "prompts"], "max_tokens": 3, "temperature": 0},
            {"prompt": "logprobs", "max_tokens": 4, "logprobs": 2, "echo": True, "seed": 1},
            {"prompt": "x", "max_tokens": 200, "stop": ["a", "é"], "seed": 9},
        ]),
        (CHAT, [{"messages": USER, "max_tokens": 6, "logprobs": True}]),
        (RESPONSES, [
            {**RESPONSE, "include": ["message.output_text.logprobs"], "metadata": {"a": "b"}},
            {**RESPONSE, "previous_response_id": "EARLIER", "instructions": "Be brief."},
            {**RESPONSE, "store": True},
        ]),
    ],
)  # fmt: skip
def test_a_line_is_answered_as_its_endpoint_would(
    store: FlaskClient, url: str, bodies: list[Json]
) -> None:
    """Where it does not say that a response is kept, it is not."""
    earlier = store.post(RESPONSES, json=RESPONSE).get_json()["id"]
    bodies = [{"seed": 7, "ignore_eos": True, **body} for body in bodies]
    for body in bodies:
        body.update({"previous_response_id": earlier} if "previous_response_id" in body else {})
    lines = [line(number, url=url, body=body) for number, body in enumerate(bodies)]
    batch, total = run(store, *lines, endpoint=url), len(bodies)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": total, "completed": total, "failed": 0}
    assert batch["error_file_id"] is None
    told = answers(store, batch["output_file_id"])
    tokens = 0
    for number, body in enumerate(bodies):
        one = told[f"id {number}"]
        assert one["error"] is None
        assert one["response"]["status_code"] == 200
        written = one["response"]["body"]
        asked = {"store": False, **body} if url == RESPONSES else body
        direct = store.post(url, json=asked).get_json()
        assert alike(written) == alike(direct)
        tokens += direct["usage"].get("completion_tokens") or direct["usage"]["output_tokens"]
        if url == RESPONSES:
            Response.model_validate(written, strict=True)
            found = store.get(f"{RESPONSES}/{written['id']}")
            assert found.status_code == (200 if body.get("store") else 404)
    assert batch["usage"]["output_tokens"] == tokens
    assert len({one["id"] for one in told.values()}) == total
    assert len({one["response"]["request_id"] for one in told.values()}) == total


@contextmanager
def answering(folder: Path, model: HashModel, mode: ModeName = "dynamic") -> Iterator[FlaskClient]:
    config = Config(mode, data_dir=str(folder), api_key="one", max_batch_size=8, max_wait_ms=5)
    with serving(config, lambda _: model) as client:
        yield client


def test_a_constraint_that_fails_while_a_line_runs_is_its_error(tmp_path: Path) -> None:
    """It would fail again, so the line is not tried again."""

    class Failing(ScriptedModel):
        def _execute(self, iteration: Any) -> Outcome:
            outcome = super()._execute(iteration)
            return replace(outcome, failed=dict.fromkeys(range(len(outcome.tokens)), "too slow"))

    with answering(tmp_path, Failing("x")) as client:
        batch = run(client, line(1))
        assert batch["output_file_id"] is None
        told = answers(client, batch["error_file_id"])["id 1"]["response"]
        assert told["status_code"] == 400
        assert "too slow" in told["body"]["error"]["message"]


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_completes_a_job_alongside_immediate_requests(
    mode: ModeName, tmp_path: Path
) -> None:
    bodies = [{"prompt": f"line {n}", "max_tokens": 6, "seed": n} for n in range(20)]
    with answering(tmp_path, HashModel(), mode) as client, ThreadPoolExecutor(1) as pool:
        lines = [line(n, body=body) for n, body in enumerate(bodies)]
        job = pool.submit(run, client_of(client.application), *lines)
        direct = [client.post(COMPLETIONS, json=body).get_json() for body in bodies]
        batch = job.result()
        assert batch["request_counts"] == {"total": 20, "completed": 20, "failed": 0}
        told = answers(client, batch["output_file_id"])
        counts = got(client, "/stats")["counts"]
    for number, body in enumerate(direct):
        assert alike(told[f"id {number}"]["response"]["body"]) == alike(body)
    assert (counts["waiting"], counts["running"], counts["completed"]) == (0, 0, 40)


def test_a_cancelled_job_keeps_what_was_answered(tmp_path: Path) -> None:
    """The model waits when the first lines are answered and the last have not begun."""
    model, go = held_at(30)
    lines = [line(n, body={"prompt": "x", "max_tokens": 9}) for n in range(200)]
    with answering(tmp_path, model) as client:
        id = create(client, file_of(client, jsonl(*lines))).get_json()["id"]
        reached(client, id, "in_progress", answered=1)
        cancelling = client.post(f"/v1/batches/{id}/cancel").get_json()
        assert (cancelling["status"], cancelling["cancelled_at"]) == ("cancelling", None)
        assert cancelling["cancelling_at"] is not None
        go.set()
        batch = reached(client, id, "cancelled")
        assert batch["cancelled_at"] is not None
        output, errors = (answers(client, batch[f"{of}_file_id"]) for of in ("output", "error"))
    assert output
    assert output.keys() ^ errors.keys() == {one["custom_id"] for one in lines}
    assert {one["error"]["code"] for one in errors.values()} == {"batch_cancelled"}
    assert {one["response"] for one in errors.values()} == {None}


def test_a_failed_generation_is_tried_three_times_and_then_a_500(tmp_path: Path) -> None:
    with answering(tmp_path, HashModel(fail_on=[1, 2, 3, 4, 5])) as client:
        batch = run(client, line(0))
        assert batch["status"] == "completed"
        response = answers(client, batch["error_file_id"])["id 0"]["response"]
        assert response["status_code"] == 500
        assert response["body"]["error"]["type"] == "server_error"
        assert run(client, line(0))["error_file_id"] is None, "iterations 4 and 5"


@pytest.mark.parametrize(
    ("url", "bodies"),
    [
        (COMPLETIONS, [{"max_tokens": 3}, {"prompt": "x", "max_tokens": "many"},
                       {"prompt": "x", "max_tokens": 10_000}, {"prompt": "", "max_tokens": 1}]),
        (CHAT, [{"messages": USER, "tool_choice": "subtract"}]),
        (RESPONSES, [{"input": "x", "reasoning": "low"},
                     {"input": "x", "previous_response_id": "resp_none"}]),
    ],
)  # fmt: skip
def test_a_body_that_its_endpoint_refuses_is_the_error_of_its_line(
    store: FlaskClient, url: str, bodies: list[Json]
) -> None:
    lines = [line(number, url=url, body=body) for number, body in enumerate(bodies)]
    batch, total = run(store, *lines, endpoint=url), len(bodies)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": total, "completed": 0, "failed": total}
    assert batch["output_file_id"] is None
    told = answers(store, batch["error_file_id"])
    for number, body in enumerate(bodies):
        direct = store.post(url, json=body)
        one = told[f"id {number}"]
        assert one["error"] is None
        assert one["response"]["status_code"] == direct.status_code in (400, 404)
        assert one["response"]["body"] == direct.json


# lines of one file, each with what is wrong with it
ENVELOPES: list[tuple[Json | str, str | None]] = [
    (line(1), None),
    ("{", "invalid_json_line"),
    ("", None),
    ("[]", "invalid_json_line"),
    ('{"custom_id": NaN}', "invalid_json_line"),
    (line(2), None),
    (line(1), "duplicate_custom_id"),
    (line(3, custom_id=None), "missing_required_parameter"),
    (line(4, custom_id=7), "invalid_custom_id"),
    (line(5, method="GET"), "invalid_method"),
    (line(6, url="/v1/chat/completions"), "url_mismatch"),
    (line(7, body=None), "missing_required_parameter"),
    (line(8, body=[1]), "invalid_body"),
    (line(9, body={"stream": True}), "stream_not_supported"),
    (line(10, body={"model": "gpt-9"}), "model_mismatch"),
    (line(11, body={"prompt": "x" * 70_000}), "line_too_large"),
]


def test_bad_envelopes_fail_the_batch_and_are_named_by_their_lines(store: FlaskClient) -> None:
    batch = run(store, *(one for one, _ in ENVELOPES))
    assert batch["status"] == "failed"
    assert batch["failed_at"] is not None
    told = batch["errors"]["data"]
    faults = [(code, number) for number, (_, code) in enumerate(ENVELOPES, start=1) if code]
    assert sorted((fault["code"], fault["line"]) for fault in told) == sorted(faults)
    assert all(fault["message"] for fault in told)
    assert batch["output_file_id"] is batch["error_file_id"] is None
    for lines, code, number in (
        ([], "empty_file", None),
        (["  ", ""], "empty_file", None),
        ([line(1, body={"model": "gpt-9"})], "model_not_found", 1),
    ):
        (fault,) = run(store, *lines)["errors"]["data"]
        assert (fault["code"], fault["line"]) == (code, number)


def test_a_file_with_only_wrong_lines_reports_a_hundred_of_them(store: FlaskClient) -> None:
    batch = run(store, *["wrong"] * 500)
    assert [fault["line"] for fault in batch["errors"]["data"]] == list(range(1, 101))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(({"completion_window": window}, "completion_window")
          for window in ("soon", "0h", "31d", "599s", "9m")),
        *(({"metadata": metadata}, "metadata")
          for metadata in ({str(n): "" for n in range(17)}, {"k" * 65: ""}, {"k": "v" * 513})),
        ({"output_expires_after": {**EXPIRY, "seconds": 60}}, "output_expires_after"),
    ],
)  # fmt: skip
def test_a_batch_that_is_not_offered_is_refused(
    store: FlaskClient, fields: Json, param: str
) -> None:
    error = error_of(create(store, file_of(store, jsonl(line(1))), **fields))
    assert error["param"] == param
    if fields.get("completion_window") == "599s":
        assert "600 s (--min-completion-window)" in error["message"]


def test_the_files_and_batches_of_a_key_are_limited(tmp_path: Path) -> None:
    content = jsonl(line(1))
    most = len(content) * 3 // 2
    config = Config("dynamic", data_dir=str(tmp_path), api_key="one,two", max_stored_bytes=most)
    with serving(config) as store:
        file = file_of(store, content)
        for refused in (upload(store, content), create(store, file)):
            error = error_of(refused, 413)
            assert error["code"] == "storage_quota_exceeded"
            assert "--max-stored-bytes" in error["message"]
        assert store.get("/v1/files", headers=TWO).status_code == 200
        assert store.delete(f"/v1/files/{file}").status_code == 200
        assert upload(store, content).status_code == 200


@pytest.mark.parametrize(
    ("window", "seconds"), [("30m", 1800), ("2h", 7200), ("1d", 86_400), ("600s", 600)]
)
def test_windows_and_outputs_last_as_long_as_their_client_says(
    store: FlaskClient, window: str, seconds: int
) -> None:
    expiry = {**EXPIRY, "seconds": 7200}
    fields = {"output_expires_after": expiry, "metadata": {"for": "me"}}
    batch = run(store, line(1), completion_window=window, **fields)
    assert batch["completion_window"] == window
    assert batch["expires_at"] - batch["created_at"] == seconds
    file = got(store, f"/v1/files/{batch['output_file_id']}")
    assert file["expires_at"] - file["created_at"] == 7200
    assert file["purpose"] == "batch_output"
    assert batch["metadata"] == {"for": "me"}


def test_a_key_that_was_sent_before_means_the_same_batch(store: FlaskClient) -> None:
    file = file_of(store, jsonl(line(1)))

    def made(key: str, **fields: Any) -> TestResponse:
        return create(store, file, headers={"Idempotency-Key": key}, **fields)

    first, again, other = (made(key).get_json()["id"] for key in ("once", "once", "twice"))
    assert first == again != other
    changed = error_of(made("once", completion_window="1h"))
    assert changed["code"] == "idempotency_key_reused"
    assert made("k" * 256).status_code == 400


def test_batches_are_listed_newest_first_for_their_own_key_only(store: FlaskClient) -> None:
    ids = [run(store, line(1))["id"] for _ in range(2)]
    page = got(store, "/v1/batches?limit=1")
    assert ([batch["id"] for batch in page["data"]], page["has_more"]) == (ids[1:], True)
    following = got(store, f"/v1/batches?limit=1&after={page['last_id']}")
    assert [batch["id"] for batch in following["data"]] == ids[:1]
    assert store.get("/v1/batches", headers=TWO).get_json()["data"] == []
    for answer in (
        *(store.get(f"/v1/batches{of}", headers=TWO) for of in (f"/{ids[0]}", f"?after={ids[0]}")),
        store.post(f"/v1/batches/{ids[0]}/cancel", headers=TWO),
        store.get("/v1/batches/batch_none"),
        create(store, "file-none"),
    ):
        error_of(answer, 404)
    error_of(store.get("/v1/batches?limit=101"))
    ended = store.post(f"/v1/batches/{ids[0]}/cancel")
    assert "completed" in error_of(ended)["message"]


def test_stats_and_metrics_show_the_jobs(store: FlaskClient) -> None:
    run(store, line(1), line(2, body={}))

    def shown() -> Json:
        jobs: Json = got(store, "/stats")["jobs"]
        return jobs

    # the store is read once in a second
    eventually(lambda: shown().get("batches", {}).get("completed", 0) >= 1, "a batch in /stats")
    jobs = shown()
    assert jobs["store"] == "open"
    assert jobs["items"]["completed"] >= 1
    text = store.get("/metrics").text
    assert "eb_job_store_up 1.0" in text
    assert 'eb_batches{status="completed"}' in text
    assert 'eb_batch_lines{state="pending"}' in text
