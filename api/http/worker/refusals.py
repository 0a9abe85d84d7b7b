"""Requests that the worker refuses before their handler runs: it hands over an error in the place
of the body, and the application sends it in the shape of the path's API."""

from __future__ import annotations

from dataclasses import dataclass

from flask import Flask, request

from api.http.errors import RETRY_AFTER_S, ApiError


@dataclass(frozen=True, slots=True)
class RefusedBody:
    error: ApiError


def too_much_held() -> ApiError:
    return _busy("the server holds too many bytes of requests (--max-held-bytes); try again")


def too_few_files() -> ApiError:
    return _busy("the server has too few files for more waiting requests; try again")


def no_thread() -> ApiError:
    return _busy("the system allows the server no further thread; try again")


def _busy(message: str) -> ApiError:
    return ApiError(503, message, {"Retry-After": str(RETRY_AFTER_S)})


def register_refusals(app: Flask) -> None:
    @app.before_request
    def refuse() -> None:
        body = request.environ["wsgi.input"]
        if isinstance(body, RefusedBody):
            raise body.error
