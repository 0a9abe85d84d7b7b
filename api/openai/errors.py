"""The errors of OpenAI's API."""

from __future__ import annotations

from functools import partial

from typing_extensions import TypedDict

from api.http.errors import ApiError
from api.openapi import documented


class OpenAIErrorBody(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(TypedDict):
    error: OpenAIErrorBody


openai_errors = partial(documented, OpenAIError, 500)


def error_shape(error: ApiError) -> OpenAIError:
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        429: "rate_limit_error",
    }
    fallback = "server_error" if error.status >= 500 else "invalid_request_error"
    codes = {429: "rate_limit_exceeded", 503: "overloaded"}
    return {
        "error": {
            "message": error.message,
            "type": kinds.get(error.status, fallback),
            "param": error.param,
            "code": error.code or codes.get(error.status),
        }
    }
