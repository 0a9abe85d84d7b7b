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


@dataclass(frozen=True, slots=True)
class Problem:
    """An error answer: HTTP status, OpenAI's `type` and `code`, and the message for the caller."""

    status: int
    kind: str
    code: str
    message: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


class RefusalError(Exception):
    """The router answers with a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


@dataclass(slots=True)
class Response:
    """A complete answer."""

    status: int
    body: bytes = b""
    headers: Pairs = field(default_factory=list)


def invalid(message: str, status: int = 400, code: str = "invalid_request") -> Problem:
    """The client's fault."""
    return Problem(status, "invalid_request_error", code, message)


def too_slow() -> Problem:
    return invalid("The body arrived too slowly.", 408, "timeout")


def broken_body(error: Exception) -> Problem:
    return invalid(f"The body is broken: {error}")


def no_key(message: str) -> Problem:
    problem = invalid(message, 401, "api_key")
    problem.headers["WWW-Authenticate"] = "Bearer"
    return problem


def unknown_model(model: str, known: list[str]) -> Problem:
    available = ", ".join(known) or "none"
    message = f"No upstream found with {model}, all available models: {available}."
    return Problem(422, "invalid_request_error", "model_not_found", message, "model")


def queue_full(model: str, limit: int, wait_s: float, deferred: bool) -> Problem:
    bound = f"{limit} requests for {model}"
    if deferred:
        bound += f", or {half(limit)} deferred ones,"
    message = f"{bound} are waiting already (MAX_QUEUE), try again later."
    headers = {"Retry-After": str(max(1, min(60, math.ceil(wait_s))))}
    return Problem(429, "rate_limit_error", "queue_full", message, headers=headers)


def over_limit(over: OverLimit) -> Problem:
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
    return Problem(429, over.kind, "rate_limit_exceeded", message, headers=headers)


def unavailable(message: str, code: str) -> Problem:
    return Problem(503, "server_error", code, message, headers={"Retry-After": "1"})


def buffers_full() -> Problem:
    message = "The router holds too many bytes of requests (MAX_HELD_BYTES), try again."
    return unavailable(message, "overloaded")


def upstream_failed(message: str, status: int = 502) -> Problem:
    return Problem(status, "server_error", "upstream_failed", message)


def body_of(problem: Problem, path: str, *, openai: bool = False) -> bytes:
    """The JSON body of an error in the dialect of the path, or OpenAI's."""
    shape: dict[str, Any]
    if not openai and (path in TGI_PATHS or path.startswith("/generate")):
        # TGI's clients recognise an overload by this word
        kind = "overloaded" if problem.status == 429 else problem.code
        shape = {"error": problem.message, "error_type": kind}
    elif path == "/inference":
        shape = {"error": problem.message}
    else:
        shape = {
            "error": {
                "message": problem.message,
                "type": problem.kind,
                "param": problem.param,
                "code": problem.code,
            }
        }
    return json.dumps(shape).encode()


def response(problem: Problem, path: str, *, openai: bool = False) -> Response:
    """The complete error answer."""
    headers = encoded({"Content-Type": "application/json", **problem.headers})
    return Response(problem.status, body_of(problem, path, openai=openai), headers)
