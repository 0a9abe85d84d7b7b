"""Which pages of other origins may call the server (`--cors-allow-origin`): `web/cors.py`."""

from __future__ import annotations

from flask import Flask, Response, request

from web.cors import response_headers


def register_cors(app: Flask, allowed: str | None) -> None:
    """`allowed`: origins, comma separated, or `*`; None allows no page."""
    if allowed is None:
        return
    origins = frozenset(allowed.split(","))

    @app.after_request
    def add_headers(response: Response) -> Response:
        headers, vary = response_headers(origins, request.method, request.headers.get)
        response.headers.update(headers)
        response.vary.update(vary)
        return response
