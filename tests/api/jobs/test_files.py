"""`/v1/files`: uploads, what is refused of them, pages, and whose files are whose; and when the
store of the jobs is opened."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from api.jobs import uploads
from api.jobs.files import MOST_AT_ONCE
from deferred.lines import MOST_FILE_BYTES
from serving.config import Config
from tests.api.conftest import TWO, serving
from tests.support.dialects import NATIVE, RESPONSES, ask, refused

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
        assert store.head(path).content_length == 2


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
        b"no form at all",
        PURPOSE,
        PURPOSE + part("file", b"cut off", "f")[:-4],
        PURPOSE + END,
        PURPOSE + part("file", b"a field, no file") + END,
        part("purpose", b"b" * 2000) + END,
        b"".join(part(f"field{i}", b"") for i in range(uploads.MOST_PARTS + 1)) + END,
        PURPOSE + part("other", b"", "f") + END,
        part("file", b"1", "f") + part("file", b"2", "g") + PURPOSE + END,
        part("file", b"1", "f") + part("purpose", b"fine-tune") + END,
        part("file", b"1", "f") + END,
        *(
            PURPOSE + part(ANCHOR, anchor) + part(SECONDS, seconds) + part("file", b"1", "f") + END
            for anchor, seconds in ((b"created_at", b"3599"), (b"now", b"3600"))
        ),
        part("file", b"1", "f") + part(SECONDS, b"3600") + PURPOSE + END,
        b"--edge\r\nno: disposition\r\n\r\nbody\r\n" + END,
        b"--edge\r\n" + b"h" * 400_000,
        b'--edge\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n\r\n' + END,
        b'--edge\r\nContent-Disposition: form-data; name="file"; filename="\xff"\r\n\r\n' + END,
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
    assert ([file["id"] for file in rising["data"][:-4:-1]], rising["has_more"]) == (ids, False)


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
