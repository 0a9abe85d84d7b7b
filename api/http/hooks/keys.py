"""Authorization: `Authorization: Bearer KEY`, on everything but `/health` and the files of the live
page."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from flask import Flask, g, request

from api.http.errors import ApiError
from web.headers import bearer_key, is_valid

OPEN_PATHS = ("/health", "/watch")
OPEN_FOLDER = "/watch/page/"


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def presented_key() -> str:
    """The key of the present request; "" if none is required."""
    key: str = g.get("api_key", "")
    return key


def presented_owner() -> str:
    """The present client as a hash of its key, which cannot leak the key; "" if none is
    required."""
    key = presented_key()
    return hashlib.sha256(key.encode()).hexdigest() if key else ""


def require_keys(app: Flask, keys: Sequence[str]) -> None:
    """Without keys every request is allowed, and so are a browser's preflight requests (OPTIONS),
    which carry none."""
    if not keys:
        return

    @app.before_request
    def check() -> None:
        if is_open(request.path) or request.method == "OPTIONS":
            return
        key = bearer_key(request.headers.get("Authorization", ""))
        if not is_valid(key.encode(), keys):
            raise ApiError(
                401,
                "this server requires a key: Authorization: Bearer KEY, one of --api-key",
                {"WWW-Authenticate": "Bearer"},
                code="invalid_api_key",
            )
        g.api_key = key
