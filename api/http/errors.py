"""Errors as clients receive them: a status and one sentence that says what was wrong and what is
allowed. A traceback goes to the log, never to a client."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flask import Blueprint, Flask, Response, jsonify, request
from gunicorn.http.errors import ParseException  # type: ignore[import-untyped]
from pydantic import BaseModel
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict
from werkzeug.exceptions import (
    ClientDisconnected,
    HTTPException,
    MethodNotAllowed,
    NotFound,
    RequestEntityTooLarge,
)

from deferred.errors import (
    FileTooLargeError,
    IdempotencyMismatchError,
    NotFoundError,
    QuotaExceededError,
    StatusConflictError,
    StoreError,
)
from engine.inference import DrainingError, OverloadedError, RefusedError, TooLongError
from web.requests import show as show

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1  # a slot becomes free with every request that ends
STORE_RETRY_AFTER_S = 5
CLIENT_GONE = 499  # nginx's number for it, used only in logs

_OF_THE_STORE: Mapping[type[StoreError], tuple[int, str]] = {
    NotFoundError: (404, "not_found"),
    QuotaExceededError: (413, "storage_quota_exceeded"),
    FileTooLargeError: (413, "file_too_large"),
    StatusConflictError: (400, "invalid_status"),
    IdempotencyMismatchError: (400, "idempotency_key_reused"),
}


class ApiError(Exception):
    """Ends a request with a status and a sentence, before any part of the answer was sent.
    `param` is the field at fault and `code` a name for the error, for dialects that return them."""

    def __init__(
        self,
        status: int,
        message: str,
        headers: dict[str, str] | None = None,
        *,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}
        self.param = param
        self.code = code


def invalid(field: str, said: str) -> ApiError:
    return ApiError(400, f"field '{field}' {said}", param=field)


@dataclass(frozen=True, slots=True)
class RefusedBody:
    """In the place of the body of a request that the worker refuses before its handler runs, so
    that the application sends the error in the shape of the path's API."""

    error: ApiError


def busy(reason: str) -> ApiError:
    return ApiError(503, reason, {"Retry-After": str(RETRY_AFTER_S)})


Shape = Callable[[ApiError], Mapping[str, Any]]  # an error as the body of a dialect


class Error(TypedDict):
    error: str


def plain_shape(error: ApiError) -> Error:
    return {"error": error.message}


def refusal(error: RefusedError) -> ApiError:
    """The status of a refused request, in every dialect."""
    match error:
        case TooLongError():
            return ApiError(400, str(error))
        case OverloadedError():
            return ApiError(429, str(error), {"Retry-After": str(math.ceil(error.retry_after_s))})
        case DrainingError():
            return busy(str(error))
        case _:
            raise error


def store_refusal(error: StoreError) -> ApiError:
    """Of an error of the job store."""
    for kind, (status, code) in _OF_THE_STORE.items():
        if isinstance(error, kind):
            param = "file" if kind is FileTooLargeError else None
            return ApiError(status, str(error), param=param, code=code)
    # its words are a library's or the operator's: addresses, users, paths
    log.warning("the job store is not available: %s", error)
    return ApiError(
        503,
        "the job store is not available; the server's log says why",
        {"Retry-After": str(STORE_RETRY_AFTER_S)},
        code="store_unavailable",
    )


def explain(errors: Sequence[ErrorDetails], schema: type[BaseModel]) -> str:
    """Says which fields are wrong and what is allowed, from the schema's descriptions."""
    fields = {spec.alias or name: spec for name, spec in schema.model_fields.items()}
    grouped: dict[str, list[ErrorDetails]] = {}  # a union reports each of its members
    for error in errors:
        grouped.setdefault(str(error["loc"][0]), []).append(error)
    sentences = []
    for name, found in grouped.items():
        field = fields.get(name)
        if field is None:
            needed_first = sorted(fields, key=lambda name: not fields[name].is_required())
            sentences.append(f"unknown field {show(name)}; allowed: {', '.join(needed_first)}")
        elif found[0]["type"] == "missing" and len(found[0]["loc"]) == 1:
            sentences.append(f"field '{name}' is missing; it must be {field.description}")
        else:
            sentences.append(f"field '{name}' must be {field.description}, got {_got(found)}")
    return "; ".join(sentences)


def _got(errors: Sequence[ErrorDetails]) -> str:
    """The value of a field, or what its type says of something in it: of its kind, for example."""
    for error in errors:
        if error["type"] == "union_tag_invalid":
            return f"{show(error['ctx']['tag'])}; allowed there: {error['ctx']['expected_tags']}"
        if error["type"] == "literal_error" and len(error["loc"]) > 2:
            return f"{show(error['input'])}; allowed there: {error['ctx']['expected']}"
    return show(errors[0]["input"])


def register_errors(app: Flask, shapes: Mapping[str, Shape]) -> None:
    """Returns every error, routing included, in the shape of the dialect with the path's prefix,
    otherwise as `{"error": ...}`."""

    def answer(error: ApiError) -> Response:
        of_path = (shape for prefix, shape in shapes.items() if request.path.startswith(prefix))
        return error_response(error, next(of_path, plain_shape))

    answer_errors(app, answer)


def answer_errors(target: Flask | Blueprint, answer: Callable[[ApiError], Response]) -> None:
    target.register_error_handler(ApiError, answer)
    target.register_error_handler(HTTPException, lambda error: answer(http_error(error)))
    target.register_error_handler(ParseException, lambda error: answer(chunk_error(error)))
    target.register_error_handler(StoreError, lambda error: answer(store_refusal(error)))
    target.register_error_handler(Exception, lambda error: answer(internal_error(error)))


def error_response(error: ApiError, shape: Shape) -> Response:
    response = jsonify(shape(error))
    response.status_code = error.status
    response.headers.extend(error.headers)
    return response


def http_error(error: HTTPException) -> ApiError:
    """werkzeug's refusals in this project's words."""
    message = f"{error.name}: {error.description}"
    status, headers = error.code or 500, {}
    if isinstance(error, RequestEntityTooLarge):
        message = "the body is larger than this path accepts"
    elif isinstance(error, ClientDisconnected):
        message = "the body ended before it was complete"
        if isinstance(error.__context__, TimeoutError):
            message = "the rest of the body did not arrive in time (--client-timeout)"
            status = 408
    elif isinstance(error, NotFound):
        message = f"there is no {show(request.path)} here"
    elif isinstance(error, MethodNotAllowed) and error.valid_methods:
        allowed = ", ".join(sorted(error.valid_methods))
        message = f"method not allowed; allowed: {allowed}"
        headers["Allow"] = allowed
    return ApiError(status, message, headers)


def chunk_error(error: ParseException) -> ApiError:
    """gunicorn's error for a body in chunks, met where the body is read."""
    return ApiError(400, f"the body's chunks are malformed: {error}", {"Connection": "close"})


def internal_error(error: Exception) -> ApiError:
    """An internal error: only the log has the details."""
    log.error("a request failed inside the server", exc_info=error)
    return ApiError(500, "internal error; see the server's log")
