"""Refuses requests that a foreign web page sent: the rules of `web/browsers.py`, for every path.

And paths that could lead an upstream to others."""

import re
from urllib.parse import unquote

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.rules.messages import errors
from web.browsers import HEADERS, Rules


def leads_elsewhere(path: str) -> bool:
    """Whether a server may resolve this path to one that was not checked."""
    return not {".", ".."}.isdisjoint(re.split(r"[/\\]", unquote(path)))


def guarded_by(rules: Rules) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        values = (",".join(request.headers.getall(name, ())) for name in HEADERS)
        refused = rules.refusal(request.method, *values)
        if refused is None and leads_elsewhere(request.rel_url.raw_path):
            message = "The path must not contain the segments '.' and '..', encoded or not."
            return errors.response(errors.invalid(message), request.path)
        if refused is None:
            return await handler(request)
        return errors.response(errors.invalid(refused, 403, "forbidden"), request.path)

    return check
