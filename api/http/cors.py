"""Which pages of other origins may call the server from a browser (`--cors-allow-origin`).

A browser asks with OPTIONS first, which Flask answers for every route; here are the headers that
it looks for. An origin that is allowed may use the method and the headers that it asks for: what a
client's SDK adds to its requests changes with every release, and what the server does not know it
refuses or ignores anyway. <https://fetch.spec.whatwg.org/#http-cors-protocol>
"""

from __future__ import annotations

from flask import Flask, Response, request

EVERYONE = "*"
ASKED = {  # the browser's question -> our answer
    "Access-Control-Request-Method": "Access-Control-Allow-Methods",
    "Access-Control-Request-Headers": "Access-Control-Allow-Headers",
}
MAX_AGE_S = 600  # for which the answer holds


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
            response.headers["Access-Control-Max-Age"] = str(MAX_AGE_S)
            for question, answer in ASKED.items():
                response.vary.add(question)
                if question in request.headers:
                    response.headers[answer] = request.headers[question]
        return response
