"""The router's own errors, in the shape that clients expect. No I/O.

The shape is OpenAI's error object, except on TGI's paths and our own: their clients read `error` as
a string.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from router.rules.limits import OverLimit, duration
from router.rules.messages.headers import Pairs, encoded
from router.rules.upstream import half

TGI_PATHS = ("/", "/tokenize", "/chat_tokenize")


@dataclass(eq=False)
class RouterError(Exception):
    """The router answers with an error: its HTTP status, OpenAI's `type`, `code` and `param`, and
    the message for the caller."""

    status: int
    kind: str
    code: str
    message: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Response:
    """A complete answer."""

    status: int
    body: bytes = b""
    headers: Pairs = field(default_factory=list)


def invalid(
    message: str, status: int = 400, code: str = "invalid_request", param: str | None = None
) -> RouterError:
    """The client's fault."""
    return RouterError(status, "invalid_request_error", code, message, param)


def too_slow() -> RouterError:
    return invalid("The body arrived too slowly.", 408, "timeout")


def broken_body(why: str) -> RouterError:
    return invalid(f"The body is broken: {why}")


def no_key(message: str) -> RouterError:
    error = invalid(message, 401, "api_key")
    error.headers["WWW-Authenticate"] = "Bearer"
    return error


def unknown_model(model: str, known: list[str]) -> RouterError:
    available = ", ".join(known) or "none"
    message = f"No upstream found with {model}, all available models: {available}."
    return invalid(message, 422, "model_not_found", "model")


def queue_full(model: str, limit: int, wait_s: float, deferred: bool) -> RouterError:
    bound = f"{limit} requests for {model}"
    if deferred:
        bound += f", or {half(limit)} deferred ones,"
    message = f"{bound} are waiting already (MAX_QUEUE), try again later."
    headers = {"Retry-After": str(max(1, min(60, math.ceil(wait_s))))}
    return RouterError(429, "rate_limit_error", "queue_full", message, headers=headers)


def over_limit(over: OverLimit) -> RouterError:
    """As OpenAI says it."""
    name = {"requests": "requests per min (RPM)", "tokens": "tokens per min (TPM)"}[over.kind]
    message = f"Rate limit reached on {name}: Limit {over.limit}, "
    headers = {}
    if over.again_s is None:
        message = f"Request too large on {name}: Limit {over.limit}, Requested {over.asked}."
    else:
        again = duration(over.again_s)
        message += f"Used {over.used}, Requested {over.asked}. Please try again in {again}."
        headers = {"Retry-After": str(max(1, math.ceil(over.again_s)))}
    return RouterError(429, over.kind, "rate_limit_exceeded", message, headers=headers)


def unavailable(message: str, code: str = "no_upstream_ready") -> RouterError:
    return RouterError(503, "server_error", code, message, headers={"Retry-After": "1"})


def buffers_full() -> RouterError:
    message = "The router holds too many bytes of requests (MAX_HELD_BYTES), try again."
    return unavailable(message, "overloaded")


def failed(message: str, status: int = 502, code: str = "upstream_failed") -> RouterError:
    return RouterError(status, "server_error", code, message)


def body_of(error: RouterError, path: str, *, openai: bool = False) -> bytes:
    """The JSON body of an error in the dialect of the path, or OpenAI's."""
    shape: dict[str, Any]
    if not openai and (path in TGI_PATHS or path.startswith("/generate")):
        # TGI's clients recognise an overload by this word
        kind = "overloaded" if error.status == 429 else error.code
        shape = {"error": error.message, "error_type": kind}
    elif path == "/inference":
        shape = {"error": error.message}
    else:
        shape = {
            "error": {
                "message": error.message,
                "type": error.kind,
                "param": error.param,
                "code": error.code,
            }
        }
    return json.dumps(shape).encode()


def response(error: RouterError, path: str, *, openai: bool = False) -> Response:
    """The complete error answer."""
    headers = encoded({"Content-Type": "application/json", **error.headers})
    return Response(error.status, body_of(error, path, openai=openai), headers)
