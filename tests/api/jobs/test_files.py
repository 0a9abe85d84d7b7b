"""`/v1/files`: uploads, what is refused of them, pages, and whose files are whose."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from api.jobs import uploads
from deferred.lines import MOST_FILE_BYTES

ONE = {"Authorization": "Bearer one"}
TWO = {"Authorization": "Bearer two"}


def part(name: str, value: bytes, filename: str | None = None) -> bytes:
    named = f'; filename="{filename}"' if filename else ""
    head = f'--edge\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + value + b"\r\n"


END = b"--edge--\r\n"


def raw(
    client: FlaskClient, body: bytes, kind: str = "multipart/form-data; boundary=edge"
) -> TestResponse:
    return client.post("/v1/files", data=body, content_type=kind, headers=ONE)


def upload(client: FlaskClient, content: bytes = b"{}", **fields: str | None) -> TestResponse:
    form = {"purpose": "batch", **fields}
    parts = [part(name, value.encode()) for name, value in form.items() if value is not None]
    return raw(client, b"".join([*parts, part("file", content, "lines.jsonl"), END]))


def error_of(answer: TestResponse) -> dict[str, Any]:
    assert answer.json is not None
    error: dict[str, Any] = answer.json["error"]
    return error


@pytest.mark.parametrize(
    "content",
    [b"", b"one", b"\r\n--edg\r\n--edge-\r\n--edg", bytes(range(256)) * 12_345],
    ids=["empty", "short", "like a boundary", "3 MB"],
)
def test_an_uploaded_file_is_returned_unchanged(store: FlaskClient, content: bytes) -> None:
    answer = upload(store, content)
    assert answer.status_code == 200
    file = answer.json
    assert file is not None
    assert file["id"].startswith("file-")
    assert {key: file[key] for key in ("object", "bytes", "filename", "purpose", "status")} == {
        "object": "file",
        "bytes": len(content),
        "filename": "lines.jsonl",
        "purpose": "batch",
        "status": "processed",
    }
    assert store.get(f"/v1/files/{file['id']}", headers=ONE).json == file
    got = store.get(f"/v1/files/{file['id']}/content", headers=ONE)
    assert got.data == content
    assert got.content_length == len(content)


@pytest.mark.parametrize("place", range(4))
def test_a_file_expires_when_its_client_or_else_the_operator_chose(
    store: FlaskClient, place: int
) -> None:
    """OpenAI's client for Python sends the file last, that for JavaScript in the call's order."""
    parts = [
        part("purpose", b"batch"),
        part("expires_after[anchor]", b"created_at"),
        part("expires_after[seconds]", b"3600"),
    ]
    parts.insert(place, part("file", b"{}", "lines.jsonl"))
    asked = raw(store, b"".join([*parts, END])).json
    by_default = upload(store).json
    assert asked is not None
    assert by_default is not None
    assert asked["expires_at"] - asked["created_at"] == 3600
    assert by_default["expires_at"] - by_default["created_at"] == 30 * 86_400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": None}, "purpose"),
        ({"expires_after[seconds]": "3600"}, "expires_after"),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            "expires_after",
        ),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, "expires_after"),
    ],
)
def test_a_form_that_is_not_offered_is_refused(
    store: FlaskClient, fields: dict[str, Any], param: str
) -> None:
    answer = upload(store, **fields)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no form at all",
        part("purpose", b"batch"),
        part("purpose", b"batch") + part("file", b"cut off", "f")[:-4],
        part("purpose", b"batch") + END,
        part("purpose", b"batch") + part("file", b"a field, no file") + END,
        part("purpose", b"b" * 2000) + END,
        b"".join(part(f"field{i}", b"") for i in range(uploads.MOST_PARTS + 1)) + END,
        part("purpose", b"batch") + part("other", b"", "f") + END,
        part("file", b"1", "f") + part("file", b"2", "g") + part("purpose", b"batch") + END,
        part("file", b"1", "f") + part("purpose", b"fine-tune") + END,
        part("file", b"1", "f") + part("expires_after[seconds]", b"3600")
        + part("purpose", b"batch") + END,
        b"--edge\r\nno: disposition\r\n\r\nbody\r\n" + END,
        b"--edge\r\n" + b"h" * 400_000,
        b'--edge\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n\r\n' + END,
        b'--edge\r\nContent-Disposition: form-data; name="file"; filename="\xff"\r\n\r\n' + END,
    ],
)  # fmt: skip
def test_a_broken_form_gets_a_sentence_and_leaves_nothing(store: FlaskClient, body: bytes) -> None:
    before = store.get("/v1/files", headers=ONE).json
    answer = raw(store, body)
    assert answer.status_code == 400
    assert error_of(answer)["type"] == "invalid_request_error"
    assert store.get("/v1/files", headers=ONE).json == before


def test_another_content_type_is_415(store: FlaskClient) -> None:
    assert raw(store, b"{}", "application/json").status_code == 415
    assert raw(store, b"{}", "multipart/form-data").status_code == 415


def test_a_file_that_is_too_large_is_413_before_it_is_read(store: FlaskClient) -> None:
    answer = store.post(
        "/v1/files",
        content_type="multipart/form-data; boundary=edge",
        headers=ONE,
        environ_overrides={"CONTENT_LENGTH": str(MOST_FILE_BYTES + 2**20)},
    )
    assert answer.status_code == 413
    assert error_of(answer)["code"] == "file_too_large"


def test_pages_of_files_follow_one_another(store: FlaskClient) -> None:
    ids = [upload(store).json["id"] for _ in range(5)]  # type: ignore[index]
    seen: list[str] = []
    after = ""
    while True:
        page = store.get(f"/v1/files?limit=2{after}", headers=ONE).json
        assert page is not None
        assert page["object"] == "list"
        assert page["first_id"] == page["data"][0]["id"]
        assert page["last_id"] == page["data"][-1]["id"]
        seen += [file["id"] for file in page["data"]]
        if not page["has_more"]:
            break
        after = f"&after={page['last_id']}"
    assert seen[:5] == ids[::-1]
    rising = store.get("/v1/files?order=asc", headers=ONE).json
    assert rising is not None
    assert [file["id"] for file in rising["data"]] == seen[::-1]
    of_outputs = store.get("/v1/files?purpose=batch_output", headers=ONE).json
    assert of_outputs is not None
    assert of_outputs["data"] == []
    assert of_outputs["first_id"] is None


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=10001", "limit=x", "limit=-1", "limit=1e3", "order=up"]
)
def test_a_page_that_is_not_offered_is_400(store: FlaskClient, query: str) -> None:
    answer = store.get(f"/v1/files?{query}", headers=ONE)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == query.split("=")[0]


def test_a_deleted_file_is_gone(store: FlaskClient) -> None:
    id = upload(store).json["id"]  # type: ignore[index]
    assert store.delete(f"/v1/files/{id}", headers=ONE).json == {
        "id": id,
        "object": "file",
        "deleted": True,
    }
    for path in (f"/v1/files/{id}", f"/v1/files/{id}/content", f"/v1/files?after={id}"):
        answer = store.get(path, headers=ONE)
        assert answer.status_code == 404
        assert error_of(answer)["type"] == "invalid_request_error"
    assert store.delete(f"/v1/files/{id}", headers=ONE).status_code == 404


def test_a_file_is_for_its_own_key_only(store: FlaskClient) -> None:
    id = upload(store).json["id"]  # type: ignore[index]
    assert store.get(f"/v1/files/{id}").status_code == 401
    for answer in (
        store.get(f"/v1/files/{id}", headers=TWO),
        store.get(f"/v1/files/{id}/content", headers=TWO),
        store.delete(f"/v1/files/{id}", headers=TWO),
        store.get(f"/v1/files?after={id}", headers=TWO),
    ):
        assert answer.status_code == 404
    assert store.get("/v1/files", headers=TWO).json["data"] == []  # type: ignore[index]
    assert store.get(f"/v1/files/{id}", headers=ONE).status_code == 200
