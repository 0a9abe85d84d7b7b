"""`/v1/files`: uploads, what is refused of them, pages, and whose files are whose; when the store
of the jobs is opened. `/v1/batches`: what one may be, errors by line, answers and owners."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from openai.types.responses import Response
from werkzeug.test import TestResponse

from api.jobs.files import MOST_AT_ONCE, MOST_PARTS
from deferred.lines import MOST_FILE_BYTES
from serving.config import Config
from tests.api.conftest import TWO, held_at, serving
from tests.support.dialects import NATIVE, OPENAI, RESPONSES, Json, ask, refused
from tests.support.openai_calls import alike
from tests.support.process import eventually

FORM = "multipart/form-data; boundary=edge"
END = b"--edge--\r\n"
ANCHOR, SECONDS = "expires_after[anchor]", "expires_after[seconds]"


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    named = f'; filename="{filename}"' if filename else ""
    head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + value + b"\r\n"


PURPOSE = part("purpose", b"batch")


def raw(client: FlaskClient, body: bytes, kind: str = FORM) -> TestResponse:
    return client.post("/v1/files", data=body, content_type=kind)


def upload(client: FlaskClient, content: bytes = b"{}", **fields: str | None) -> TestResponse:
    form = {"purpose": "batch", **fields}
    parts = [part(name, value.encode()) for name, value in form.items() if value is not None]
    return raw(client, b"".join([*parts, part("file", content, "lines.jsonl"), END]))


def error_of(answer: TestResponse, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status
    error: dict[str, Any] = answer.get_json()["error"]
    return error


def got(client: FlaskClient, path: str) -> Any:
    return client.get(path).get_json()


@pytest.mark.parametrize(
    "content",
    [b"", b"\r\n--edg\r\n--edge-\r\n--edg", bytes(range(256)) * 12_345],
    ids=["empty", "like a boundary", "3 MB"],
)
def test_an_uploaded_file_is_returned_unchanged(store: FlaskClient, content: bytes) -> None:
    file = upload(store, content).get_json()
    assert file["id"].startswith("file-")
    told = [file[name] for name in ("object", "bytes", "filename", "purpose", "status")]
    assert told == ["file", len(content), "lines.jsonl", "batch", "processed"]
    assert got(store, f"/v1/files/{file['id']}") == file
    read = store.get(f"/v1/files/{file['id']}/content")
    assert (read.data, read.content_length) == (content, len(content))


def test_downloads_have_places_which_the_end_of_each_frees(store: FlaskClient) -> None:
    path = f"/v1/files/{upload(store).get_json()['id']}/content"
    with ExitStack() as running:
        for _ in range(MOST_AT_ONCE):
            running.callback(store.get(path).close)
        refused = store.get(path)
        assert "16 downloads" in error_of(refused, 429)["message"]
        assert "Retry-After" in refused.headers
    for _ in range(MOST_AT_ONCE):
        assert store.get(path).data == b"{}"
        with store.head(path) as head:
            assert head.content_length == 2


def test_a_file_expires_when_its_client_or_else_the_operator_chose(store: FlaskClient) -> None:
    """OpenAI's client for Python sends the file last, that for JavaScript in the call's order."""
    fields = [PURPOSE, part(ANCHOR, b"created_at"), part(SECONDS, b"3600")]
    file = part("file", b"{}", "lines.jsonl")
    for parts, seconds in (
        ([*fields, file], 3600), ([fields[0], file, *fields[1:]], 3600),
        ([file, *fields], 3600), ([PURPOSE, file], 30 * 86_400),
    ):  # fmt: skip
        told = raw(store, b"".join([*parts, END])).get_json()
        assert told["expires_at"] - told["created_at"] == seconds


@pytest.mark.parametrize(
    "body",
    [
        b"",
        PURPOSE + part("file", b"cut off", "f")[:-4],
        part("purpose", b"b" * 2000) + END,
        b"".join(part(f"field{i}", b"") for i in range(MOST_PARTS + 1)) + END,
        PURPOSE + part("other", b"", "f") + END,
        part("file", b"1", "f") + part("file", b"2", "g") + PURPOSE + END,
        part("file", b"1", "f") + part("purpose", b"fine-tune") + END,
        part("file", b"1", "f") + END,
        *(
            PURPOSE + part(ANCHOR, anchor) + part(SECONDS, seconds) + part("file", b"1", "f") + END
            for anchor, seconds in ((b"created_at", b"3599"), (b"now", b"3600"))
        ),
        part("file", b"1", "f") + part(SECONDS, b"3600") + PURPOSE + END,
        b"--edge\r\n" + b"h" * 400_000,
        b'--edge\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n\r\n' + END,
    ],
)
def test_a_broken_form_gets_a_sentence_and_leaves_nothing(store: FlaskClient, body: bytes) -> None:
    before = got(store, "/v1/files")
    assert error_of(raw(store, body))["type"] == "invalid_request_error"
    assert got(store, "/v1/files") == before


def test_other_content_types_and_files_that_are_too_large_are_refused_unread(
    store: FlaskClient,
) -> None:
    assert raw(store, b"{}", "application/json").status_code == 415
    assert raw(store, b"{}", "multipart/form-data").status_code == 415
    length = {"CONTENT_LENGTH": str(MOST_FILE_BYTES + 2**20)}
    answer = store.post("/v1/files", content_type=FORM, environ_overrides=length)
    assert error_of(answer, 413)["code"] == "file_too_large"


def test_files_are_listed_in_pages_of_both_orders(store: FlaskClient) -> None:
    ids = [upload(store).get_json()["id"] for _ in range(3)][::-1]
    page = got(store, "/v1/files?limit=2")
    assert ([file["id"] for file in page["data"]], page["has_more"]) == (ids[:2], True)
    following = got(store, f"/v1/files?limit=1&after={page['last_id']}")
    assert [file["id"] for file in following["data"]] == ids[2:]
    rising = got(store, "/v1/files?order=asc&purpose=batch")
    assert [file["id"] for file in rising["data"][:-4:-1]] == ids


def test_a_file_is_for_its_own_key_only_until_it_is_deleted(store: FlaskClient) -> None:
    id = upload(store).get_json()["id"]
    paths = (f"/v1/files/{id}", f"/v1/files/{id}/content", f"/v1/files?after={id}")
    assert store.application.test_client().get(paths[0]).status_code == 401
    for path in paths:
        error_of(store.get(path, headers=TWO), 404)
    error_of(store.delete(paths[0], headers=TWO), 404)
    assert store.get("/v1/files", headers=TWO).get_json()["data"] == []
    deleted = store.delete(paths[0]).get_json()
    assert deleted == {"id": id, "object": "file", "deleted": True}
    for path in paths:
        assert error_of(store.get(path), 404)["type"] == "invalid_request_error"
    error_of(store.delete(paths[0]), 404)


# --- the store ------------------------------------------------------------------------------

WHERE = "postgresql://secret-user:secret-password@127.0.0.3:1/secret-database"


def test_a_store_that_cannot_be_opened_turns_the_batch_api_off_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its address is logged, without its password, and not shown to clients."""
    too_long = str(tmp_path / ("x" * 300))  # even root cannot open it
    for config in (Config("dynamic", data_dir=too_long), Config("dynamic", database_url=WHERE)):
        with serving(config) as client:
            answers = [client.get(path) for path in ("/v1/files", "/v1/batches/b", "/stats")]
            assert ask(client, NATIVE).status_code == ask(client, RESPONSES).status_code == 200
            answers.append(client.post(RESPONSES, json={"input": "x"}))
        assert [answer.status_code for answer in answers] == [503, 503, 200, 503]
        assert answers[0].get_json()["error"]["code"] == "store_unavailable"
        assert answers[2].get_json()["jobs"] == {"store": "unavailable"}
        assert '"store": false' in refused(answers[3], RESPONSES, 503), "the way out"
        for answer in answers:
            assert "secret-" not in answer.text
            assert "127.0.0.3" not in answer.text
    assert "127.0.0.3" in caplog.text
    assert "secret-password" not in caplog.text


COMPLETIONS, CHAT = OPENAI
USER = [{"role": "user", "content": "hello"}]
EXPIRY: Json = {"anchor": "created_at"}


def line(number: int, **changes: Any) -> Json:
    body = {"model": "embedded", "prompt": f"line {number}", "max_tokens": 4, "seed": number}
    envelope = {"custom_id": f"id {number}", "method": "POST", "url": COMPLETIONS, "body": body}
    return {**envelope, **changes}


def jsonl(*lines: Json | str) -> bytes:
    texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    return "".join(f"{text}\n" for text in texts).encode()


def create(client: FlaskClient, *lines: Json | str, **fields: Any) -> TestResponse:
    file_id = fields.pop("file", None) or upload(client, jsonl(*lines)).get_json()["id"]
    asked = {"input_file_id": file_id, "endpoint": COMPLETIONS, "completion_window": "24h"}
    headers = fields.pop("headers", {})
    return client.post("/v1/batches", json={**asked, **fields}, headers=headers)


def run(client: FlaskClient, *lines: Json | str, **fields: Any) -> Json:
    """Until the batch has ended."""
    answer = create(client, *lines, **fields)
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
        id = create(client, *lines).get_json()["id"]
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
    (line(2), None),
    (line(1), "duplicate_custom_id"),
    (line(3, custom_id=None), "missing_required_parameter"),
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
    told = run(store, *["wrong"] * 500)["errors"]["data"]
    assert [fault["line"] for fault in told] == list(range(1, 101))


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
    assert error_of(create(store, line(1), **fields))["param"] == param


def test_a_key_that_was_sent_before_means_the_same_batch(store: FlaskClient) -> None:
    file = upload(store, jsonl(line(1))).get_json()["id"]

    def made(key: str, **fields: Any) -> TestResponse:
        return create(store, file=file, headers={"Idempotency-Key": key}, **fields)

    first, again, other = (made(key).get_json()["id"] for key in ("once", "once", "twice"))
    assert first == again != other
    assert made("once", completion_window="1h").status_code == 400


def test_batches_are_listed_newest_first_for_their_own_key_only(store: FlaskClient) -> None:
    ids = [run(store, line(1))["id"] for _ in range(2)]
    page = got(store, f"/v1/batches?limit=1&after={ids[1]}")
    assert [batch["id"] for batch in page["data"]] == ids[:1]
    assert store.get("/v1/batches", headers=TWO).get_json()["data"] == []
    for answer in (
        *(store.get(f"/v1/batches{of}", headers=TWO) for of in (f"/{ids[0]}", f"?after={ids[0]}")),
        store.post(f"/v1/batches/{ids[0]}/cancel", headers=TWO),
        store.get("/v1/batches/batch_none"),
        create(store, file="file-none"),
    ):
        error_of(answer, 404)
    error_of(store.get("/v1/batches?limit=101"))
    ended = store.post(f"/v1/batches/{ids[0]}/cancel")
    assert "completed" in error_of(ended)["message"]
