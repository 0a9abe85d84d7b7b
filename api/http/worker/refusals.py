"""Requests that the worker refuses before their handler runs: it hands over an error in the place
of the body, and the application sends it in the shape of the path's API."""

from __future__ import annotations

from dataclasses import dataclass

from flask import Flask, request

from api.http.errors import ApiError


@dataclass(frozen=True, slots=True)
class RefusedBody:
    error: ApiError


def register_refusals(app: Flask) -> None:
    @app.before_request
    def refuse() -> None:
        body = request.environ["wsgi.input"]
        if isinstance(body, RefusedBody):
            raise body.error
