"""Which pages of other origins may call the server from a browser (`--cors-allow-origin`).

A browser asks with OPTIONS first, which Flask answers for every route; here are the headers that
it looks for. <https://fetch.spec.whatwg.org/#http-cors-protocol>
"""

from __future__ import annotations

from flask import Flask, Response, request

EVERYONE = "*"
PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, POST",
    "Access-Control-Allow-Headers": "Content-Type, Authorization, X-Request-Id",
    "Access-Control-Max-Age": "600",  # seconds for which the answer holds
}


def register_cors(app: Flask, allowed: str | None) -> None:
    """`allowed`: origins, comma separated, or `*`; None allows no page."""
    if allowed is None:
        return
    origins = frozenset(allowed.split(","))

    @app.after_request
    def tell(response: Response) -> Response:
        origin = request.headers.get("Origin")
        if EVERYONE in origins:
            response.headers["Access-Control-Allow-Origin"] = EVERYONE
        else:
            response.vary.add("Origin")  # a cache must not give one origin's answer to another
            if origin not in origins:
                return response
            response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = "X-Request-Id, Retry-After"
        if request.method == "OPTIONS":
            response.headers.update(PREFLIGHT)
        return response
