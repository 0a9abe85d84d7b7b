"""Refuses requests that a foreign web page sent, for every path: the rules of `web/browsers.py`.
Says which other origins may call the server (`--cors-allow-origin`): `web/cors.py`."""

from __future__ import annotations

from flask import Flask, Response, request

from api.http.errors import ApiError
from serving.config import Config
from web.browsers import HEADERS, Rules, own_names
from web.cors import response_headers


def register_rules(app: Flask, config: Config) -> None:
    rules = Rules(
        keys=config.keys,
        # asks for them only where they count: a resolver without a network delays the start
        names={*(() if config.keys else own_names()), config.host, *config.allow_hosts},
        origins=(config.cors_allow_origin or "").split(","),
        key_option="--api-key",
        origins_option="--cors-allow-origin",
    )

    @app.before_request
    def check() -> None:
        refused = rules.refusal(
            request.method, *(request.headers.get(name, "") for name in HEADERS)
        )
        if refused is not None:
            raise ApiError(403, refused, code="forbidden")


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
