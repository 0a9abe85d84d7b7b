"""Which pages of other origins may call the server from a browser (`--cors-allow-origin`).

A browser first sends OPTIONS, which Flask answers for every route; this adds the headers that it
needs. An allowed origin may use any method and headers: the headers of clients' SDKs change with
every release, and the server refuses or ignores unknown ones anyway. <https://fetch.spec.whatwg.org/#http-cors-protocol>
"""

from __future__ import annotations

from flask import Flask, Response, request

EVERYONE = "*"
ASKED = {  # request header -> response header
    "Access-Control-Request-Method": "Access-Control-Allow-Methods",
    "Access-Control-Request-Headers": "Access-Control-Allow-Headers",
}
MAX_AGE_S = 600  # for which the response is valid


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
