"""`/v1/batches`: what a batch may be, its errors by line, its answers, pages and owners."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from seams import Outcome
from serving.config import Config
from tests.api.conftest import serving
from tests.api.jobs.test_files import ONE, TWO, error_of, upload
from tests.scripted_model import ScriptedModel

PATIENCE_S = 60.0
Json = dict[str, Any]


def line(number: int, **changes: Any) -> Json:
    body = {"model": "embedded", "prompt": f"line {number}", "max_tokens": 4, "seed": number}
    envelope = {
        "custom_id": f"id {number}",
        "method": "POST",
        "url": "/v1/completions",
        "body": body,
    }
    return {**envelope, **changes}


def jsonl(*lines: Json | str) -> bytes:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    return "".join(f"{text}\n" for text in texts).encode()


def create(client: FlaskClient, file_id: str, **fields: Any) -> TestResponse:
    body = {
        "input_file_id": file_id,
        "endpoint": "/v1/completions",
        "completion_window": "24h",
        **fields,
    }
    headers = {**ONE, **body.pop("headers", {})}
    return client.post("/v1/batches", json=body, headers=headers)


def file_of(client: FlaskClient, content: bytes) -> str:
    answer = upload(client, content)
    assert answer.json is not None
    id: str = answer.json["id"]
    return id


def ended(client: FlaskClient, batch: Json) -> Json:
    deadline_s = time.monotonic() + PATIENCE_S
    while batch["status"] in ("validating", "in_progress", "finalizing", "cancelling"):
        assert time.monotonic() < deadline_s, batch
        time.sleep(0.01)
        answer = client.get(f"/v1/batches/{batch['id']}", headers=ONE)
        assert answer.json is not None
        batch = answer.json
    return batch


def run(client: FlaskClient, *lines: Json | str, **fields: Any) -> Json:
    answer = create(client, file_of(client, jsonl(*lines)), **fields)
    assert answer.status_code == 200
    assert answer.json is not None
    return ended(client, answer.json)


def answers(client: FlaskClient, file_id: str | None) -> dict[str, Json]:
    """By custom_id."""
    if file_id is None:
        return {}
    told = client.get(f"/v1/files/{file_id}/content", headers=ONE).data
    return {one["custom_id"]: one for one in map(json.loads, told.splitlines())}


def alike(body: Json) -> Json:
    """What is the same whenever a request is made; how much was cached is not."""
    usage = {key: value for key, value in body["usage"].items() if key != "prompt_tokens_details"}
    return {**{key: body[key] for key in ("object", "model", "choices")}, "usage": usage}


def test_a_line_is_answered_as_its_endpoint_would(store: FlaskClient) -> None:
    bodies: list[Json] = [
        {"prompt": "plain", "max_tokens": 5},
        {"prompt": "two choices", "max_tokens": 5, "n": 2, "seed": 3},
        {"prompt": ["several", "prompts"], "max_tokens": 3, "temperature": 0},
        {"prompt": "logprobs", "max_tokens": 4, "logprobs": 2, "echo": True, "seed": 1},
        {"prompt": "x", "max_tokens": 200, "stop": ["a", "é"], "seed": 9, "ignore_eos": True},
        {"prompt": [1, 2, 3], "max_tokens": 2, "seed": 5},
    ]
    bodies = [{"seed": 7, "ignore_eos": True, **body} for body in bodies]
    batch = run(store, *(line(n, body=body) for n, body in enumerate(bodies)))
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 6, "completed": 6, "failed": 0}
    assert batch["error_file_id"] is None
    told = answers(store, batch["output_file_id"])
    tokens = 0
    for number, body in enumerate(bodies):
        one = told[f"id {number}"]
        assert one["error"] is None
        assert one["response"]["status_code"] == 200
        direct = store.post("/v1/completions", json=body, headers=ONE).json
        assert direct is not None
        assert alike(one["response"]["body"]) == alike(direct)
        tokens += direct["usage"]["completion_tokens"]
    assert batch["usage"]["output_tokens"] == tokens
    assert len({one["id"] for one in told.values()}) == 6
    assert len({one["response"]["request_id"] for one in told.values()}) == 6


def test_a_conversation_is_answered_as_its_endpoint_would(store: FlaskClient) -> None:
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 6,
        "seed": 4,
        "logprobs": True,
        "ignore_eos": True,
    }
    url = "/v1/chat/completions"
    batch = run(store, line(1, url=url, body=body), endpoint=url)
    (one,) = answers(store, batch["output_file_id"]).values()
    direct = store.post(url, json=body, headers=ONE).json
    assert direct is not None
    assert alike(one["response"]["body"]) == alike(direct)


def test_a_conversation_calls_tools(tmp_path: Path) -> None:
    model = ScriptedModel('<tool_call>{"name": "add", "arguments": {}}</tool_call> and more')
    config = Config(mode="dynamic", data_dir=str(tmp_path), api_key="one")
    url = "/v1/chat/completions"
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [{"type": "function", "function": {"name": "add"}}],
        "parallel_tool_calls": False,
    }
    with serving(config, lambda config: model) as client:
        batch = run(
            client,
            line(1, url=url, body=body),
            line(2, url=url, body={**body, "tool_choice": "subtract"}),
            endpoint=url,
        )
        told = answers(client, batch["output_file_id"])["id 1"]["response"]["body"]
        (choice,) = told["choices"]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        assert call["function"] == {"name": "add", "arguments": "{}"}
        wrong = answers(client, batch["error_file_id"])["id 2"]["response"]
        assert (wrong["status_code"], wrong["body"]["error"]["param"]) == (400, "tool_choice")


def test_a_constraint_that_fails_while_a_line_runs_is_its_error(tmp_path: Path) -> None:
    """It would fail again, so the line is not tried again."""

    class Failing(ScriptedModel):
        def _execute(self, iteration: Any) -> Outcome:
            outcome = super()._execute(iteration)
            return replace(outcome, failed=dict.fromkeys(range(len(outcome.tokens)), "too slow"))

    config = Config(mode="dynamic", data_dir=str(tmp_path), api_key="one")
    with serving(config, lambda config: Failing("x")) as client:
        batch = run(client, line(1))
        assert batch["output_file_id"] is None
        told = answers(client, batch["error_file_id"])["id 1"]["response"]
        assert told["status_code"] == 400
        assert "too slow" in told["body"]["error"]["message"]


def test_a_body_that_its_endpoint_refuses_is_the_error_of_its_line(store: FlaskClient) -> None:
    refused: list[Json] = [
        {"max_tokens": 3},
        {"prompt": "x", "max_tokens": "many"},
        {"prompt": "x", "max_tokens": 10_000},
        {"prompt": "", "max_tokens": 1},
    ]
    batch = run(store, line(0), *(line(n, body=body) for n, body in enumerate(refused, start=1)))
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 5, "completed": 1, "failed": 4}
    assert set(answers(store, batch["output_file_id"])) == {"id 0"}
    told = answers(store, batch["error_file_id"])
    for number, body in enumerate(refused, start=1):
        direct = store.post("/v1/completions", json=body, headers=ONE)
        assert told[f"id {number}"]["error"] is None
        assert told[f"id {number}"]["response"]["status_code"] == direct.status_code == 400
        assert told[f"id {number}"]["response"]["body"] == direct.json


def test_a_batch_without_an_answer_has_no_output_file(store: FlaskClient) -> None:
    batch = run(store, line(1, body={}))
    assert batch["status"] == "completed"
    assert batch["output_file_id"] is None
    assert set(answers(store, batch["error_file_id"])) == {"id 1"}


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        ([], [("empty_file", None)]),
        (["  ", ""], [("empty_file", None)]),
        ([line(1), "{"], [("invalid_json_line", 2)]),
        ([line(1), "", "[]"], [("invalid_json_line", 3)]),
        (['{"custom_id": NaN}'], [("invalid_json_line", 1)]),
        ([line(1), line(2), line(1)], [("duplicate_custom_id", 3)]),
        ([line(1, custom_id=None)], [("missing_required_parameter", 1)]),
        ([line(1, custom_id=7)], [("invalid_custom_id", 1)]),
        ([line(1, method="GET")], [("invalid_method", 1)]),
        ([line(1, url="/v1/chat/completions")], [("url_mismatch", 1)]),
        ([line(1, body=None)], [("missing_required_parameter", 1)]),
        ([line(1, body=[1])], [("invalid_body", 1)]),
        ([line(1, body={"stream": True})], [("stream_not_supported", 1)]),
        ([line(1, body={"model": "gpt-9"})], [("model_not_found", 1)]),
        ([line(1), line(2, body={"model": "gpt-9"})], [("model_mismatch", 2)]),
        ([line(1, body={"prompt": "x" * 70_000})], [("line_too_large", 1)]),
        (
            ["no json", line(2), line(2), line(4, method="PUT")],
            [("invalid_json_line", 1), ("duplicate_custom_id", 3), ("invalid_method", 4)],
        ),
    ],
)
def test_one_bad_envelope_fails_the_batch_and_names_its_line(
    store: FlaskClient, lines: list[Json | str], faults: list[tuple[str, int | None]]
) -> None:
    batch = run(store, *lines)
    assert batch["status"] == "failed"
    assert batch["failed_at"] is not None
    told = batch["errors"]["data"]
    assert [(fault["code"], fault["line"]) for fault in told] == faults
    assert all(fault["message"] for fault in told)
    assert batch["output_file_id"] is None
    assert batch["error_file_id"] is None


def test_a_file_with_only_wrong_lines_reports_a_hundred_of_them(store: FlaskClient) -> None:
    batch = run(store, *["wrong"] * 500)
    assert [fault["line"] for fault in batch["errors"]["data"]] == list(range(1, 101))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"completion_window": "31d"}, "completion_window"),
        ({"completion_window": 24}, "completion_window"),
        ({"input_file_id": None}, "input_file_id"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at"}}, "output_expires_after"),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 60}},
            "output_expires_after",
        ),
        ({"priority": 1}, "priority"),
    ],
)
def test_a_batch_that_is_not_offered_is_refused(
    store: FlaskClient, fields: Json, param: str
) -> None:
    answer = create(store, file_of(store, jsonl(line(1))), **fields)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param


@pytest.mark.parametrize("window", ["30m", "2h", "1d", "600s", "24h"])
def test_a_window_may_be_of_any_length(store: FlaskClient, window: str) -> None:
    batch = run(store, line(1), completion_window=window)
    lengths = {"30m": 1800, "2h": 7200, "1d": 86_400, "600s": 600, "24h": 86_400}
    assert batch["completion_window"] == window
    assert batch["expires_at"] - batch["created_at"] == lengths[window]


@pytest.mark.parametrize("window", ["599s", "9m", "1s"])
def test_a_window_that_would_go_before_all_others_is_refused(
    store: FlaskClient, window: str
) -> None:
    answer = create(store, file_of(store, jsonl(line(1))), completion_window=window)
    assert answer.status_code == 400
    error = error_of(answer)
    assert error["param"] == "completion_window"
    assert "600 s (--min-completion-window)" in error["message"]


def test_the_files_and_batches_of_a_key_are_limited(tmp_path: Path) -> None:
    content = jsonl(line(1))
    config = Config(
        mode="dynamic",
        data_dir=str(tmp_path),
        api_key="one,two",
        max_stored_bytes=len(content) * 3 // 2,
    )
    with serving(config) as store:
        file = file_of(store, content)
        for refused in (upload(store, content), create(store, file)):
            assert refused.status_code == 413
            error = error_of(refused)
            assert error["code"] == "storage_quota_exceeded"
            assert "--max-stored-bytes" in error["message"]
        assert store.get("/v1/files", headers=TWO).status_code == 200
        assert store.delete(f"/v1/files/{file}", headers=ONE).status_code == 200
        assert upload(store, content).status_code == 200


def test_outputs_live_as_long_as_their_client_says(store: FlaskClient) -> None:
    expiry = {"anchor": "created_at", "seconds": 7200}
    batch = run(store, line(1), output_expires_after=expiry, metadata={"for": "me"})
    file = store.get(f"/v1/files/{batch['output_file_id']}", headers=ONE).json
    assert file is not None
    assert file["expires_at"] - file["created_at"] == 7200
    assert file["purpose"] == "batch_output"
    assert batch["metadata"] == {"for": "me"}


def test_a_file_that_is_not_there_is_404(store: FlaskClient) -> None:
    assert create(store, "file-none").status_code == 404


def test_a_key_that_was_sent_before_means_the_same_batch(store: FlaskClient) -> None:
    file = file_of(store, jsonl(line(1)))
    headers = {"Idempotency-Key": "once"}
    first = create(store, file, headers=headers).json
    again = create(store, file, headers=headers).json
    other = create(store, file, headers={"Idempotency-Key": "twice"}).json
    assert first is not None
    assert again is not None
    assert other is not None
    assert first["id"] == again["id"] != other["id"]
    changed = create(store, file, headers=headers, completion_window="1h")
    assert changed.status_code == 400
    assert error_of(changed)["code"] == "idempotency_key_reused"
    too_long = create(store, file, headers={"Idempotency-Key": "k" * 256})
    assert too_long.status_code == 400


def test_an_ended_batch_is_not_cancelled(store: FlaskClient) -> None:
    batch = run(store, line(1))
    answer = store.post(f"/v1/batches/{batch['id']}/cancel", headers=ONE)
    assert answer.status_code == 400
    assert "completed" in error_of(answer)["message"]


def test_batches_are_listed_newest_first_for_their_own_key_only(store: FlaskClient) -> None:
    ids = [run(store, line(1))["id"] for _ in range(3)]
    page = store.get("/v1/batches?limit=2", headers=ONE).json
    assert page is not None
    assert [batch["id"] for batch in page["data"]] == [ids[2], ids[1]]
    assert page["has_more"] is True
    following = store.get(f"/v1/batches?limit=1&after={page['last_id']}", headers=ONE).json
    assert following is not None
    assert [batch["id"] for batch in following["data"]] == [ids[0]]
    assert store.get("/v1/batches", headers=TWO).json["data"] == []  # type: ignore[index]
    for answer in (
        store.get(f"/v1/batches/{ids[0]}", headers=TWO),
        store.post(f"/v1/batches/{ids[0]}/cancel", headers=TWO),
        store.get(f"/v1/batches?after={ids[0]}", headers=TWO),
        store.get("/v1/batches/batch_none", headers=ONE),
    ):
        assert answer.status_code == 404
    assert store.get("/v1/batches?limit=101", headers=ONE).status_code == 400


def test_stats_and_metrics_show_the_jobs(store: FlaskClient) -> None:
    run(store, line(1), line(2, body={}))

    def shown() -> Json:
        jobs: Json = store.get("/stats", headers=ONE).json["jobs"]  # type: ignore[index]
        return jobs

    deadline_s = time.monotonic() + PATIENCE_S  # the store is read once in a second
    while shown().get("batches", {}).get("completed", 0) < 1:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    jobs = shown()
    assert jobs["store"] == "open"
    assert jobs["items"]["completed"] >= 1
    text = store.get("/metrics", headers=ONE).text
    assert "eb_job_store_up 1.0" in text
    assert 'eb_batches{status="completed"}' in text
    assert 'eb_batch_lines{state="pending"}' in text
