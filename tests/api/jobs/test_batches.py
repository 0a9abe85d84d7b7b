"""`/v1/batches`: what a batch may be, its errors by line, its answers, pages and owners."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from openai.types.responses import Response
from werkzeug.test import TestResponse

from serving.config import Config
from tests.api.conftest import TWO, held_at, serving
from tests.api.jobs.test_files import error_of, got, upload
from tests.support.dialects import PATHS
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
            {"prompt": ["several", "prompts"], "max_tokens": 5, "n": 2, "seed": 3},
            {"prompt": "x", "max_tokens": 200, "logprobs": 2, "stop": ["a", "é"], "echo": True},
            {"max_tokens": 3}, {"prompt": "x", "max_tokens": 10_000}, {"prompt": ""},
        ]),
        (CHAT, [{"messages": USER, "max_tokens": 6, "logprobs": True},
                {"messages": USER, "tool_choice": "subtract"}]),
        (RESPONSES, [
            {**RESPONSE, "include": ["message.output_text.logprobs"], "metadata": {"a": "b"}},
            {**RESPONSE, "previous_response_id": "EARLIER", "instructions": "Be brief."},
            {**RESPONSE, "store": True},
            {**RESPONSE, "reasoning": "low"}, {**RESPONSE, "previous_response_id": "resp_none"},
        ]),
    ],
)  # fmt: skip
def test_a_line_is_answered_or_refused_as_its_endpoint_would(
    store: FlaskClient, url: str, bodies: list[Json]
) -> None:
    """Where it does not say that a response is kept, it is not."""
    earlier = {"previous_response_id": store.post(RESPONSES, json=RESPONSE).get_json()["id"]}
    bodies = [{"seed": 7, "ignore_eos": True, **body} for body in bodies]
    for body in bodies:
        body.update(earlier if body.get("previous_response_id") == "EARLIER" else {})
    lines = [line(number, url=url, body=body) for number, body in enumerate(bodies)]
    fields = {"output_expires_after": {**EXPIRY, "seconds": 7200}, "metadata": {"for": "me"}}
    batch, total = run(store, *lines, endpoint=url, completion_window="30m", **fields), len(bodies)
    assert (batch["status"], batch["metadata"]) == ("completed", {"for": "me"})
    assert batch["expires_at"] - batch["created_at"] == 1800
    file = got(store, f"/v1/files/{batch['output_file_id']}")
    assert (file["expires_at"] - file["created_at"], file["purpose"]) == (7200, "batch_output")
    output, errors = (answers(store, batch[f"{of}_file_id"]) for of in ("output", "error"))
    told, tokens = output | errors, 0
    assert batch["request_counts"] == {
        "total": total, "completed": len(output), "failed": total - len(output)
    }  # fmt: skip
    for number, body in enumerate(bodies):
        one = told[f"id {number}"]
        asked = {"store": False, **body} if url == RESPONSES else body
        direct = store.post(url, json=asked)
        written = one["response"]["body"]
        assert (one["error"], one["response"]["status_code"]) == (None, direct.status_code)
        assert (f"id {number}" in errors) == (direct.status_code != 200)
        if direct.status_code != 200:
            assert written == direct.json
            continue
        assert alike(written) == alike(direct.get_json())
        usage = written["usage"]
        tokens += usage.get("completion_tokens") or usage["output_tokens"]
        if url == RESPONSES:
            Response.model_validate(written, strict=True)
            found = store.get(f"{RESPONSES}/{written['id']}")
            assert found.status_code == (200 if body.get("store") else 404)
    assert batch["usage"]["output_tokens"] == tokens
    assert len({one["id"] for one in told.values()}) == total
    assert len({one["response"]["request_id"] for one in told.values()}) == total


def test_a_cancelled_job_keeps_what_was_answered(tmp_path: Path) -> None:
    """The model waits when the first lines are answered and the last have not begun."""
    model, go = held_at(30)
    lines = [line(n, body={"prompt": "x", "max_tokens": 9}) for n in range(200)]
    config = Config("dynamic", data_dir=str(tmp_path), max_batch_size=8)
    with serving(config, lambda _: model) as client:
        id = create(client, file_of(client, jsonl(*lines))).get_json()["id"]
        reached(client, id, "in_progress", answered=1)
        cancelling = client.post(f"/v1/batches/{id}/cancel").get_json()
        assert (cancelling["status"], cancelling["cancelled_at"]) == ("cancelling", None)
        go.set()
        batch = reached(client, id, "cancelled")
        output, errors = (answers(client, batch[f"{of}_file_id"]) for of in ("output", "error"))
    assert output
    assert output.keys() ^ errors.keys() == {one["custom_id"] for one in lines}
    assert {one["error"]["code"] for one in errors.values()} == {"batch_cancelled"}
    assert {one["response"] for one in errors.values()} == {None}


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
    run(store, line(1))
    # the store is read once in a second
    counted = 'eb_batches{status="completed"} '
    eventually(lambda: counted in store.get("/metrics").text, "a batch")
    assert got(store, "/stats")["jobs"]["items"]["completed"] >= 1
