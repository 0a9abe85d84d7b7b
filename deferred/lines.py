"""The lines of a batch's files: the format of a job and of its results.

Bytes in, bytes out; no store, no clock. The formats and limits are those of OpenAI's Batch API
(platform.openai.com/docs/api-reference/batch). This module checks only the envelopes: one wrong
envelope fails the batch. The endpoint checks a body when its line runs; a wrong body fails only
that line.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deferred.entities import LineError, NewItem, Unrun
from web.requests import HALF, read_json, show

ENDPOINTS = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
MOST_LINES = 50_000
MOST_FILE_BYTES = 200 * 2**20  # OpenAI says 200 MB
MOST_ERRORS = 100  # reported for one file
MOST_CUSTOM_ID = 512  # characters

Json = dict[str, Any]


def split(chunks: Iterable[bytes], most_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not blank with their numbers, from 1. Longer lines are cut to
    `most_bytes` + 1, so that memory is bounded."""
    number, held = 0, b""
    for chunk in chunks:
        *complete, rest = chunk.split(b"\n")
        for piece in complete:
            number += 1
            line, held = held + piece[: most_bytes + 1 - len(held)], b""
            if not line.isspace() and line:
                yield number, line
        held += rest[: most_bytes + 1 - len(held)]
    if held and not held.isspace():
        yield number + 1, held


class Envelope(BaseModel):
    model_config = ConfigDict(strict=True)

    custom_id: Annotated[str, Field(max_length=MOST_CUSTOM_ID, pattern=r"^[^\x00]+$")]
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


# of each field: the code of an error, and what the field must be
FIELDS = {
    "custom_id": (
        "invalid_custom_id",
        f"a string of 1 to {MOST_CUSTOM_ID} characters that no other line has, without null "
        "character and half of a surrogate pair",
    ),
    "method": ("invalid_method", "'POST'"),
    "url": ("url_mismatch", "the batch's endpoint"),
    "body": ("invalid_body", "the request, an object"),
}


class Envelopes:
    """Checks the lines of one file in order. The store checks that custom_ids are unique."""

    def __init__(self, endpoint: str, names: Sequence[str], most_line_bytes: int) -> None:
        """`names`: the served model's names. A line may leave the model out."""
        self._endpoint = endpoint
        self._names = names
        self._most_line_bytes = most_line_bytes
        self._named: str | None = None

    def judge(self, number: int, line: bytes) -> NewItem | LineError:
        fault = partial(LineError, line=number)
        if len(line) > self._most_line_bytes:
            most = f"{self._most_line_bytes} bytes (--max-body-bytes)"
            return fault("line_too_large", f"the line is longer than {most}")
        try:
            envelope = Envelope.model_validate(read_json(line))
        except RecursionError:
            return fault("invalid_json_line", "the line is nested too deeply")
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            given = None if first["type"] == "missing" else first["input"]
            if first["loc"]:
                return self._wrong(number, str(first["loc"][0]), given)
            return fault("invalid_json_line", f"the line must be a JSON object, got {show(given)}")
        except ValueError as error:  # UnicodeDecodeError is one
            return fault("invalid_json_line", f"the line is not valid JSON: {error}")
        if "\ufffd" in envelope.custom_id and HALF.search(line.decode(errors="replace")):
            return self._wrong(number, "custom_id", envelope.custom_id)
        if envelope.url != self._endpoint:
            return self._wrong(number, "url", envelope.url)
        return self._fault_of_body(number, envelope.body) or NewItem(
            number, envelope.custom_id, json.dumps(envelope.body, separators=(",", ":")).encode()
        )

    def _wrong(self, number: int, name: str, given: object) -> LineError:
        code, wanted = FIELDS[name]
        if name == "url":
            wanted = f"'{self._endpoint}', {wanted}"
        if given is None:
            message = f"'{name}' is missing; it must be {wanted}"
            return LineError("missing_required_parameter", message, number, name)
        return LineError(code, f"'{name}' must be {wanted}, got {show(given)}", number, name)

    def _fault_of_body(self, number: int, body: Json) -> LineError | None:
        model, named = body.get("model"), self._named
        if body.get("stream") is True:
            message = "'stream' must be false or left out: a batch has no stream"
            return LineError("stream_not_supported", message, number, "body.stream")
        if model is None:
            return None
        if named is not None and model != named:
            message = (
                f"all lines of a batch must name the same model: {show(named)} in an earlier "
                f"line, got {show(model)}"
            )
            return LineError("model_mismatch", message, number, "body.model")
        if model not in self._names:
            allowed = ", ".join(map(show, self._names))
            message = f"the model {show(model)} is not served here; allowed: {allowed}"
            return LineError("model_not_found", message, number, "body.model")
        self._named = model
        return None


NO_FILE = LineError("file_not_found", "the input file was deleted or has expired")
EMPTY_FILE = LineError("empty_file", "the file has no requests")
TOO_MANY_LINES = LineError("too_many_tasks", f"the file has more than {MOST_LINES} requests")


def duplicate(line: int, custom_id: str, first_line: int) -> LineError:
    message = f"'custom_id' {show(custom_id)} is already used in line {first_line}"
    return LineError("duplicate_custom_id", message, line, "custom_id")


# --- answers ----------------------------------------------------------------------------------


UNRUN: dict[Unrun, tuple[str, str]] = {
    "expired": (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    "cancelled": ("batch_cancelled", "This request was not executed: its batch was cancelled."),
}


def answered(batch_id: str, number: int, custom_id: str, status: int, body: Json) -> bytes:
    """A line of the output file, or of the error file if `status` is an error."""
    response = {"status_code": status, "request_id": uuid.uuid4().hex, "body": body}
    return _line(batch_id, number, custom_id, response, None)


def unrun(batch_id: str, number: int, custom_id: str, why: Unrun) -> bytes:
    """A line of the error file for a request that was not executed."""
    code, message = UNRUN[why]
    return _line(batch_id, number, custom_id, None, {"code": code, "message": message})


def _line(
    batch_id: str, number: int, custom_id: str, response: Json | None, error: Json | None
) -> bytes:
    # the id stays the same when the line is executed again
    digest = hashlib.blake2b(f"{batch_id}:{number}".encode(), digest_size=16).hexdigest()
    line = {
        "id": f"batch_req_{digest}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return json.dumps(line, separators=(",", ":")).encode()
