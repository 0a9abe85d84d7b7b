"""Refuses requests that a foreign web page sent: the rules of `web/browsers.py`, for every path."""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from router.rules.messages import errors
from web.browsers import HEADERS, Rules


def guarded_by(rules: Rules) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        values = (",".join(request.headers.getall(name, ())) for name in HEADERS)
        refused = rules.refusal(request.method, *values)
        if refused is None:
            return await handler(request)
        return errors.response(errors.invalid(refused, 403, "forbidden"), request.path)

    return check
