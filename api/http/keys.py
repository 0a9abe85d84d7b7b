"""Who may ask: `Authorization: Bearer KEY`, on everything but `/health` and the files of
the live page."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from flask import Flask, g, request

from api.http.errors import ApiError

OPEN_PATHS = ("/health", "/watch")
OPEN_FOLDER = "/watch/page/"


def is_open(path: str) -> bool:
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def presented_key() -> str:
    """The key with which the present request was let in; "" where none is asked for."""
    key: str = g.get("api_key", "")
    return key


def presented_owner() -> str:
    """Who asks, without a key that could leak: its hash; "" where none is asked for."""
    key = presented_key()
    return hashlib.sha256(key.encode()).hexdigest() if key else ""


def require_keys(app: Flask, keys: Sequence[str]) -> None:
    """Without keys everyone may. A browser asks with OPTIONS, which carries none, whether it
    may ask."""
    if not keys:
        return
    allowed = [key.encode() for key in keys]

    @app.before_request
    def check() -> None:
        if is_open(request.path) or request.method == "OPTIONS":
            return
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        # every key is compared, in constant time, so that the time reveals nothing about them
        known = [hmac.compare_digest(given.strip().encode(), key) for key in allowed]
        if scheme.lower() != "bearer" or not any(known):
            raise ApiError(
                401,
                "this server needs a key: Authorization: Bearer KEY, with one that --api-key names",
                {"WWW-Authenticate": "Bearer"},
                code="invalid_api_key",
            )
        g.api_key = given.strip()
