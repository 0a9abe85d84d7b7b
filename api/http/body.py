"""A request's body: bytes -> JSON object -> typed fields, refused with a sentence otherwise.

Long bodies and texts take turns: one at a time is parsed, rendered or encoded, and then none for
twice as long. Such work costs a core, and in part holds the interpreter's lock. So however many
clients send long texts at once, the thread that runs the engine keeps most of both. Short ones
never wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from threading import Lock
from typing import Any, TypeVar

from flask import Request, current_app
from pydantic import BaseModel, ValidationError
from werkzeug.exceptions import RequestEntityTooLarge

from api.http.errors import ApiError, busy, explain, show
from web.requests import read_json

MOST_UNKNOWN = 8  # unknown fields that an error names
SHORT = 2**13  # characters or bytes: some 2 to 10 ms of work
PER_S = 2**23  # two million tokens: far more than a model reads
MOST_WAIT_S = 10.0

Schema = TypeVar("Schema", bound=BaseModel)


def read_body(request: Request, schema: type[Schema], most_bytes: int) -> Schema:
    """Raises ApiError, with 413 for a body of more than `most_bytes`."""
    return of_schema(read_object(request, most_bytes), schema)


def of_schema(data: dict[str, Any], schema: type[Schema]) -> Schema:
    """Raises ApiError."""
    forbids = schema.model_config.get("extra") == "forbid"  # each unknown field is an error
    if forbids and len(data) > len(schema.model_fields) + MOST_UNKNOWN:
        known = {field.alias or name for name, field in schema.model_fields.items()}
        left_out = set(islice((name for name in data if name not in known), MOST_UNKNOWN, None))
        data = {name: value for name, value in data.items() if name not in left_out}
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        raise ApiError(400, explain(errors, schema), param=str(errors[0]["loc"][0])) from None


def read_object(request: Request, most_bytes: int) -> dict[str, Any]:
    """A JSON object with any fields. Raises like `read_body`."""
    if not request.is_json:
        kind = request.content_type or "none"
        raise ApiError(
            415,
            f"Content-Type is {kind!r}; allowed: application/json "
            "(curl -H 'Content-Type: application/json')",
        )
    # werkzeug refuses a longer Content-Length, but silently cuts a chunked body at the limit
    request.max_content_length = most_bytes + 1
    body: bytes | None
    try:
        body = request.get_data(cache=False)
    except RequestEntityTooLarge:
        body = None
    if body is None or len(body) > most_bytes:
        raise ApiError(413, f"the body is larger than {most_bytes} bytes (--max-body-bytes)")
    try:
        with current_app.extensions["turns"].of(len(body)):
            data = read_json(body)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except ValueError as error:  # bad syntax, bad encoding, and integers of thousands of digits
        raise ApiError(400, f"the body is not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise ApiError(400, f"the body must be a JSON object, got {show(data)}")
    return data


class EncodingTurns:
    """Any thread may call it."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lock = Lock()
        self._next_s = 0.0  # when the next turn may begin

    @contextmanager
    def of(self, length: int) -> Iterator[None]:
        """To work on so many characters or bytes. Raises ApiError after a long wait."""
        if length <= SHORT:
            yield
            return
        if not self._lock.acquire(timeout=MOST_WAIT_S):
            raise busy("other long texts are being read; try again")
        try:
            self._sleep(max(0.0, self._next_s - self._clock()))
            start_s = self._clock()
            try:
                yield
            finally:
                end_s = self._clock()
                self._next_s = end_s + 2 * (end_s - start_s) + length / PER_S
        finally:
            self._lock.release()
