"""Which handler answers a request, and what every request and every answer passes through."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from functools import lru_cache, partial

from router.config import RouterConfig
from router.http.admin import Admin
from router.http.jobs import PATHS
from router.http.proxy import Proxy
from router.http.server import CONTINUE, ClientRequest
from router.rules.messages import errors
from router.rules.messages.errors import Response, RouterError
from router.rules.messages.headers import Pairs, encoded
from router.rules.upstream import RESPONSES
from web.browsers import Rules, own_names, response_headers
from web.requests import HEADER, PACED, Pace, request_id

Handler = Callable[[ClientRequest], Awaitable[Response | None]]
GENERATING = ("/", "/inference", "/generate", "/generate_stream")
MOST_REMEMBERED = 256  # paths, with their handlers
TOKENIZING = ("/tokenize", "/detokenize", "/chat_tokenize")


class Routes:
    """`stop`: refusals are no longer late."""

    def __init__(
        self, config: RouterConfig, proxy: Proxy, admin: Admin, stop: asyncio.Event
    ) -> None:
        self._infer, self._relay, self._tokenize = (
            partial(proxy.handle, way) for way in (proxy.infer, proxy.relay, proxy.tokenize)
        )
        self._own: dict[tuple[str, str], Handler] = {**admin.routes()}
        self.handler = lru_cache(MOST_REMEMBERED)(self._handler)
        self._origins = {config.cors_origin} - {""}
        self._stop = stop
        self._pace = Pace()
        self._rules = Rules(
            keys=config.api_keys,
            # asks for them only where they count: a resolver without a network delays the start
            names={*(() if config.api_keys else own_names()), config.host, *config.allow_hosts},
            origins=[config.cors_origin],
            key_option="--api-keys",
            origins_option="--cors-origin",
        )

    async def answer(self, request: ClientRequest) -> Response | None:
        """The answer; None if it was passed on already."""
        response: Response | None
        try:
            self._judge(request)
            response = await self.handler(request.method, request.path)(request)
        except RouterError as refused:
            response = errors.response(refused, request.path)
        if response is not None and response.status in PACED:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace.late_s(request.connection.remote)):
                    await self._stop.wait()
        return response

    def _judge(self, request: ClientRequest) -> None:
        """Raises RouterError if a foreign web page sent it (the rules of `web/browsers.py`, for
        every path), and if a server may resolve its path to one that was not checked."""
        sent = request.headers
        refused = self._rules.refusal(
            request.method,
            sent.text(b"host").replace(", ", ","),
            sent.text(b"origin").replace(", ", ","),
            sent.text(b"sec-fetch-site").replace(", ", ","),
        )
        if refused is not None:
            raise errors.invalid(refused, 403, "forbidden")
        path = request.path
        if "." in path and not {".", ".."}.isdisjoint(re.split(r"[/\\]", path)):
            message = "The path must not contain the segments '.' and '..', encoded or not."
            raise errors.invalid(message)
        if sent.get(b"expect", CONTINUE).lower() != CONTINUE:
            message = "The header Expect may be 100-continue."
            raise errors.invalid(message, 417, "expectation_failed")

    def _handler(self, method: str, path: str) -> Handler:
        own = "GET" if method == "HEAD" else method
        if found := self._own.get((own, path)):
            return found
        for (allowed, prefix), handler in self._own.items():
            if prefix.endswith("/") and own == allowed and _below(path, prefix):
                return handler
        if method in ("GET", "POST", "DELETE"):
            if path in PATHS or any(_below(path, f"{kept}/") for kept in PATHS):
                return self._relay
            if _below(path, f"{RESPONSES}/") and (method, path) != (
                "POST", f"{RESPONSES}/input_tokens",  # its body names the server
            ):  # fmt: skip
                return self._relay
        if method == "POST":
            if _below(path, "/v1/") or path in GENERATING:
                return self._infer
            if path in TOKENIZING:
                return self._tokenize
        return _preflight if method == "OPTIONS" and self._origins else _nowhere

    def own_headers(self, request: ClientRequest, headers: Pairs) -> Pairs:
        """What an answer gets beside its own headers."""
        given = {name.lower() for name, _ in headers}
        own: dict[str, str] = {}
        if b"x-request-id" not in given:
            own[HEADER] = request_id(request.headers.text(b"x-request-id"), prefix="req-")
        if b"date" not in given:
            own["Date"] = formatdate(usegmt=True)
        if self._origins:
            sent = request.headers
            granted, vary = response_headers(
                self._origins, request.method, lambda name: sent.text(name.lower().encode()) or None
            )
            own |= granted
            if vary:
                own["Vary"] = ", ".join(sorted(vary))
        return encoded(own)


def _below(path: str, prefix: str) -> bool:
    return path.startswith(prefix) and len(path) > len(prefix)


async def _preflight(request: ClientRequest) -> Response:
    return Response(204)


async def _nowhere(request: ClientRequest) -> Response:
    message = f"There is no {request.method} {request.path} here."
    raise errors.invalid(message, 404, "not_found")
