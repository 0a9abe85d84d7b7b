"""Refuses requests that a foreign web page sent: the rules of `web/browsers.py`, for every path.

And paths that could lead an upstream to others."""

import re
from urllib.parse import unquote

from router.http.server import ClientRequest
from router.rules.messages import errors
from router.rules.messages.errors import Problem
from web.browsers import HEADERS, Rules


def leads_elsewhere(path: str) -> bool:
    """Whether a server may resolve this path to one that was not checked."""
    return not {".", ".."}.isdisjoint(re.split(r"[/\\]", unquote(path)))


def refusal(rules: Rules, request: ClientRequest) -> Problem | None:
    """Why a request is answered by nobody here; None if it is not refused."""
    values = (request.headers.get(name).replace(", ", ",") for name in HEADERS)
    refused = rules.refusal(request.method, *values)
    if refused is not None:
        return errors.invalid(refused, 403, "forbidden")
    if leads_elsewhere(request.target.partition(b"?")[0].decode()):
        return errors.invalid(
            "The path must not contain the segments '.' and '..', encoded or not."
        )
    return None
