"""OpenAI's Files API, as far as batches need it: `/v1/files`. docs/deferred.md has the limits."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, Literal

from flask import Blueprint, Response, g, request
from pydantic import BaseModel, Field
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.formparser import MultiPartParser

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
from api.openai.errors import openai_errors
from api.openapi import BODY, STORED, Answer, limit, respond
from api.service import Service
from deferred.entities import File
from deferred.jobs import Jobs
from deferred.lines import MOST_FILE_BYTES
from deferred.store.files import Files, FileWriter
from serving.config import Config

PURPOSE = "batch"
MOST_LISTED = 10_000
MOST_AT_ONCE = 16  # uploads, and as many downloads; each holds a thread while its client is slow
FORM_BYTES = 64 * 1024  # of a form besides its file
MOST_FIELD_BYTES = 256 * 1024  # of what the parser of a form holds in memory
MOST_PARTS = 16
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
            file = _stored(store.files, boundary.encode(), service.config)
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


def _stored(files: Files, boundary: bytes, config: Config) -> File:
    """The file of the form that the present request sends, in the database as it comes. The other
    fields may follow it, as OpenAI's clients send them in the order of the call. Raises ApiError;
    nothing is left of a file that is refused, or whose form is cut off."""
    now_s, writers = time.time(), list[FileWriter]()

    def begin(
        total_content_length: int | None,
        content_type: str | None,
        filename: str | None,
        content_length: int | None = None,
    ) -> Any:
        """For werkzeug's parser, which writes to it, and returns to its beginning."""
        if writers:
            raise ApiError(400, "the form has more than one file", param="file")
        name = (filename or "").replace("\0", "") or "file"
        limits = {"max_bytes": MOST_FILE_BYTES, "quota_bytes": config.max_stored_bytes}
        writers.append(files.begin(g.owner, PURPOSE, name, now_s, **limits))
        return SimpleNamespace(write=writers[0].write, seek=id)

    parser = MultiPartParser(begin, MOST_FIELD_BYTES, max_form_parts=MOST_PARTS)
    try:
        fields, parts = parser.parse(request.stream, boundary, None)
        if "file" not in parts:
            raise ApiError(
                400,
                "the form has no file; it needs a part named 'file' with a file name",
                param="file",
            )
        kept_s = _read_form(fields).kept_s(config.file_retention_days * DAY_S)
        return writers[0].end(now_s, now_s + kept_s)
    except BaseException as error:
        for writer in writers:
            writer.give_up()
        if isinstance(error, RequestEntityTooLarge):
            raise ApiError(
                400,
                f"the form has more than {MOST_PARTS} parts, or fields or headers of a part that "
                "are too long",
            ) from None
        if isinstance(error, ValueError | AttributeError):  # of a form cut off or malformed
            raise ApiError(400, f"the body is not a complete multipart form: {error}") from None
        raise


def _read_form(fields: Mapping[str, str]) -> FileForm:
    """Raises ApiError."""
    parts = {part: fields.get(f"expires_after[{part}]") for part in ("anchor", "seconds")}
    expiry: dict[str, Any] = {part: text for part, text in parts.items() if text is not None}
    if re.fullmatch(r"[0-9]{1,9}", expiry.get("seconds", "")):
        expiry["seconds"] = int(expiry["seconds"])
    return of_schema({**fields, "expires_after": expiry or None}, FileForm)
