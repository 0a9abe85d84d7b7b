"""OpenAI's Files API, as far as batches need it: `/v1/files`. docs/deferred.md has the limits."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Literal

from flask import Blueprint, Response, g, request
from pydantic import BaseModel, Field

from api.http.body import of_schema
from api.http.errors import RETRY_AFTER_S, ApiError, show
from api.jobs.pages import (
    AFTER,
    EXPIRY,
    ORDERS,
    ExpiresAfter,
    ListPage,
    Time,
    page_of,
    query_choice,
    query_limit,
    same_fields,
)
from api.jobs.uploads import Upload, read_upload
from api.openai.errors import openai_errors
from api.openapi import BODY, STORED, Answer, limit, respond
from api.service import Service
from deferred.entities import File
from deferred.jobs import Jobs
from deferred.lines import MOST_FILE_BYTES

PURPOSE = "batch"
MOST_LISTED = 10_000
MOST_AT_ONCE = 16  # uploads, and as many downloads; each holds a thread while its client is slow
FORM_BYTES = 64 * 1024  # of a form besides its file
FORM = {
    "type": "object",
    "properties": {
        "purpose": {"const": PURPOSE},
        "file": {"type": "string", "format": "binary"},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "string", "pattern": "^[0-9]+$"},
    },
    "required": ["purpose", "file"],
}
DAY_S = 86_400


class FileForm(BaseModel):
    """Beside the file."""

    purpose: Literal["batch"] = Field(description=f"'{PURPOSE}'")
    expires_after: ExpiresAfter | None = Field(None, description=EXPIRY)

    def kept_s(self, retention_s: float) -> float:
        return retention_s if self.expires_after is None else self.expires_after.seconds


class StoredFile(Answer):
    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: Time
    expires_at: Time | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None


class DeletedFile(Answer):
    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


def make_blueprint(service: Service, jobs: Jobs) -> Blueprint:
    blueprint = Blueprint("files", __name__, url_prefix="/v1/files")
    uploads, downloads = (threading.BoundedSemaphore(MOST_AT_ONCE) for _ in range(2))
    retention_s = service.config.file_retention_days * DAY_S

    @blueprint.post("")
    @openai_errors(*STORED, 429, *BODY, form=FORM, whole=StoredFile)
    def create() -> Response:
        service.require_ready()
        boundary = request.mimetype_params.get("boundary")
        if request.mimetype != "multipart/form-data" or not boundary:
            raise ApiError(
                415,
                f"Content-Type is {show(request.content_type or 'none')}; allowed: "
                "multipart/form-data (curl -F purpose=batch -F file=@requests.jsonl)",
            )
        store = jobs.store  # before the body is read, which may be long
        most_bytes = MOST_FILE_BYTES + FORM_BYTES
        if (request.content_length or 0) > most_bytes:
            raise ApiError(
                413,
                f"the file is larger than {MOST_FILE_BYTES} bytes",
                param="file",
                code="file_too_large",
            )
        request.max_content_length = most_bytes
        with _place(uploads, "uploads"):
            upload = read_upload(request.stream, boundary.encode())
            now_s = time.time()
            file = store.files.create(
                g.owner,
                PURPOSE,
                upload.filename.replace("\0", "") or "file",
                _checked(upload),
                now_s,
                max_bytes=MOST_FILE_BYTES,
                quota_bytes=service.config.max_stored_bytes,
                expires_at=lambda: now_s + _read_form(upload.fields).kept_s(retention_s),
            )
        return respond(file_shape(file))

    @blueprint.get("")
    @openai_errors(
        *STORED,
        404,
        whole=ListPage[StoredFile],
        query={
            **AFTER,
            "limit": limit(MOST_LISTED),
            "order": {"enum": list(ORDERS)},
            "purpose": {"type": "string"},
        },
    )
    def listed() -> Response:
        page = jobs.store.files.list(
            g.owner,
            time.time(),
            purpose=request.args.get("purpose"),
            after=request.args.get("after"),
            limit=query_limit(request, MOST_LISTED, MOST_LISTED),
            order=query_choice(request, "order", ORDERS, "desc"),
        )
        return respond(page_of(ListPage[StoredFile], page, file_shape))

    @blueprint.get("/<file_id>")
    @openai_errors(*STORED, 404, whole=StoredFile)
    def file(file_id: str) -> Response:
        return respond(file_shape(jobs.store.files.get(g.owner, file_id, time.time())))

    @blueprint.delete("/<file_id>")
    @openai_errors(*STORED, 404, whole=DeletedFile)
    def delete(file_id: str) -> Response:
        jobs.store.files.delete(g.owner, file_id, time.time())
        return respond(DeletedFile(id=file_id))

    @blueprint.get("/<file_id>/content")
    @openai_errors(*STORED, 404, 429, media="application/octet-stream")
    def content(file_id: str) -> Response:
        files, owner = jobs.store.files, g.owner
        size_bytes = files.get(owner, file_id, time.time()).size_bytes
        pieces = files.content(owner, file_id, time.time())
        held = _place(downloads, "downloads")

        def read() -> Iterator[bytes]:
            with held:
                yield from pieces

        response = Response(read(), mimetype="application/octet-stream")
        response.call_on_close(held.close)  # none of it may have been read
        response.content_length = size_bytes
        return response

    return blueprint


def _place(places: threading.BoundedSemaphore, what: str) -> ExitStack:
    """Held until it is closed. Raises ApiError where none is free."""
    if not places.acquire(blocking=False):
        raise ApiError(
            429,
            f"{MOST_AT_ONCE} {what} are already running, which is the limit",
            {"Retry-After": str(RETRY_AFTER_S)},
        )
    held = ExitStack()
    held.callback(places.release)
    return held


def file_shape(file: File) -> StoredFile:
    return StoredFile(bytes=file.size_bytes, **same_fields(StoredFile, file))


def _checked(upload: Upload) -> Iterator[bytes]:
    """The content; fields may follow it, as OpenAI's clients send them in the order of the call. An
    error raised here leaves nothing in the store."""
    if (purpose := upload.fields.get("purpose")) is not None:
        of_schema({"purpose": purpose}, FileForm)
    yield from upload.content
    _read_form(upload.fields)


def _read_form(fields: Mapping[str, str]) -> FileForm:
    """Raises ApiError."""
    parts = {part: fields.get(f"expires_after[{part}]") for part in ("anchor", "seconds")}
    expiry: dict[str, Any] = {part: text for part, text in parts.items() if text is not None}
    if re.fullmatch(r"[0-9]{1,9}", expiry.get("seconds", "")):
        expiry["seconds"] = int(expiry["seconds"])
    return of_schema({**fields, "expires_after": expiry or None}, FileForm)
