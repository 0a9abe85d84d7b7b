"""The lines of a batch's files: what a job may consist of, and how its answers are written.

Bytes in, bytes out; no store, no clock. The formats and limits are those of OpenAI's Batch API
(platform.openai.com/docs/api-reference/batch). Only the envelope of a line is judged here, all or
nothing; a body that its endpoint refuses is that line's own error, found when it is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

ENDPOINTS = ("/v1/completions", "/v1/chat/completions")
MOST_LINES = 50_000
MOST_FILE_BYTES = 200_000_000
MOST_FAULTS = 100  # that are told of one file
MOST_CUSTOM_ID = 512  # characters
SHOWN_CHARACTERS = 60  # of a value in a message

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a file is no job. `line` counts from 1; None: the file as a whole."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One line of a job."""

    custom_id: str
    body: Json


def split(chunks: Iterable[bytes], most_bytes: int) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers from 1. Of a line of more than `most_bytes`
    that many and one are given, so that memory stays bounded."""
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


class Envelopes:
    """Judges the lines of one file, in their order."""

    def __init__(self, endpoint: str, model: str, most_line_bytes: int) -> None:
        """`model`: the one that is served; a line that names none means it."""
        self._endpoint = endpoint
        self._served = model
        self._most_line_bytes = most_line_bytes
        self._line_of_id: dict[str, int] = {}
        self._named: str | None = None

    def judge(self, number: int, line: bytes) -> Call | Fault:
        fault = self._fault_of_size(number, line)
        if fault is not None:
            return fault
        try:
            envelope = json.loads(line.decode("utf-8-sig"), parse_constant=_refuse_constant)
        except RecursionError:
            return Fault("invalid_json_line", "the line is nested too deeply", number)
        except ValueError as error:  # UnicodeDecodeError is one
            return Fault("invalid_json_line", f"the line is not valid JSON: {error}", number)
        if not isinstance(envelope, dict):
            return Fault(
                "invalid_json_line", f"the line must be a JSON object, got {_show(envelope)}", number
            )
        custom_id = envelope.get("custom_id")
        fault = (
            self._fault_of_id(number, custom_id)
            or self._fault_of_target(number, envelope)
            or self._fault_of_body(number, envelope.get("body"))
        )
        if fault is not None:
            return fault
        self._line_of_id[custom_id] = number
        return Call(custom_id, envelope["body"])

    def _fault_of_size(self, number: int, line: bytes) -> Fault | None:
        if len(self._line_of_id) >= MOST_LINES:
            return Fault(
                "too_many_tasks", f"a batch has at most {MOST_LINES} requests, this is one more"
            )
        if len(line) > self._most_line_bytes:
            return Fault(
                "line_too_large",
                f"the line is longer than {self._most_line_bytes} bytes (--max-body-bytes)",
                number,
            )
        return None

    def _fault_of_id(self, number: int, custom_id: object) -> Fault | None:
        if custom_id is None:
            return _missing(number, "custom_id", "a string that no other line has")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MOST_CUSTOM_ID:
            return Fault(
                "invalid_custom_id",
                f"'custom_id' must be a string of 1 to {MOST_CUSTOM_ID} characters, got "
                f"{_show(custom_id)}",
                number,
                "custom_id",
            )
        try:
            custom_id.encode()
        except UnicodeEncodeError:
            return Fault(
                "invalid_custom_id", "'custom_id' has half of a surrogate pair", number, "custom_id"
            )
        if (first := self._line_of_id.get(custom_id)) is not None:
            return Fault(
                "duplicate_custom_id",
                f"'custom_id' {_show(custom_id)} is that of line {first} already",
                number,
                "custom_id",
            )
        return None

    def _fault_of_target(self, number: int, envelope: Json) -> Fault | None:
        method, url = envelope.get("method"), envelope.get("url")
        if method is None:
            return _missing(number, "method", "'POST'")
        if method != "POST":
            return Fault(
                "invalid_method", f"'method' must be 'POST', got {_show(method)}", number, "method"
            )
        if url is None:
            return _missing(number, "url", f"'{self._endpoint}', the batch's endpoint")
        if url != self._endpoint:
            return Fault(
                "url_mismatch",
                f"'url' must be the batch's endpoint '{self._endpoint}', got {_show(url)}",
                number,
                "url",
            )
        return None

    def _fault_of_body(self, number: int, body: object) -> Fault | None:
        if body is None:
            return _missing(number, "body", "the request, an object")
        if not isinstance(body, dict):
            return Fault(
                "invalid_body", f"'body' must be an object, got {_show(body)}", number, "body"
            )
        if body.get("stream") is True:
            return Fault(
                "stream_not_supported",
                "'stream' must be false or left out: a batch has no stream",
                number,
                "body.stream",
            )
        model = body.get("model")
        if model is None:
            return None
        if self._named is not None and model != self._named:
            return Fault(
                "model_mismatch",
                f"a batch has one model, {_show(self._named)} before, got {_show(model)}",
                number,
                "body.model",
            )
        if model != self._served:
            return Fault(
                "model_not_found",
                f"the model {_show(model)} is not served here; allowed: {_show(self._served)}",
                number,
                "body.model",
            )
        self._named = model
        return None


def empty_file() -> Fault:
    return Fault("empty_file", "the file holds no request")


def _missing(number: int, name: str, wanted: str) -> Fault:
    return Fault(
        "missing_required_parameter", f"'{name}' is missing; it must be {wanted}", number, name
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _show(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."


# --- answers ----------------------------------------------------------------------------------


def answered(line_id: str, custom_id: str, request_id: str, status: int, body: Json) -> bytes:
    """A line of the output file, or, where the status is an error's, of the error file."""
    response = {"status_code": status, "request_id": request_id, "body": body}
    return _line(line_id, custom_id, response, None)


def not_run(line_id: str, custom_id: str, code: str, message: str) -> bytes:
    """A line of the error file for a request that has no answer."""
    return _line(line_id, custom_id, None, {"code": code, "message": message})


def _line(line_id: str, custom_id: str, response: Json | None, error: Json | None) -> bytes:
    told = {"id": line_id, "custom_id": custom_id, "response": response, "error": error}
    return json.dumps(told, separators=(",", ":")).encode()
