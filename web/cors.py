"""Which pages of other origins may call a server from a browser. No I/O.

A browser first sends OPTIONS, which gets the same headers. An allowed origin may use any method and
headers: the headers of clients' SDKs change with every release, and servers refuse or ignore
unknown ones anyway. <https://fetch.spec.whatwg.org/#http-cors-protocol>
"""

from __future__ import annotations

from collections.abc import Callable, Set

from web.browsers import ANY_ORIGIN

ALLOWS = {  # request header -> response header
    "Access-Control-Request-Method": "Access-Control-Allow-Methods",
    "Access-Control-Request-Headers": "Access-Control-Allow-Headers",
}
MAX_AGE_S = 600  # for which the response to OPTIONS is valid


def response_headers(
    allowed: Set[str], method: str, header: Callable[[str], str | None]
) -> tuple[dict[str, str], set[str]]:
    """The headers that a response gets, and the names that it adds to `Vary`. `allowed`: origins,
    or `*` for all of them. `header` returns a header of the request."""
    origin, vary = header("Origin"), set()
    if ANY_ORIGIN in allowed:
        origin = ANY_ORIGIN
    else:
        vary.add("Origin")  # a cache must not give one origin's response to another
        if origin is None or origin not in allowed:
            return {}, vary
    headers = {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "X-Request-Id, Retry-After",
    }
    if method == "OPTIONS":
        vary.update(ALLOWS)
        headers["Access-Control-Max-Age"] = str(MAX_AGE_S)
        for asked, allow in ALLOWS.items():
            if (value := header(asked)) is not None:
                headers[allow] = value
    return headers, vary
