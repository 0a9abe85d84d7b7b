"""Refuses requests that a foreign web page sent: the rules of `web/browsers.py`, for every path."""

from __future__ import annotations

from flask import Flask, request

from api.http.errors import ApiError
from serving.config import Config
from web.browsers import HEADERS, Rules, own_names


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
