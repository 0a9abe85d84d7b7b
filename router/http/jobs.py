"""Files and batches: to the one upstream that keeps them, or to any of those that share a database.

Bodies and answers pass as they come, so that a file of any size takes no memory here. They take no
upstream's place, since they ask for no inference; nothing is tried again, since a body is gone once
it was passed on.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

import aiohttp
from aiohttp import web
from yarl import URL

from router.config import ANY
from router.desk import Desk
from router.http.exchange import ClientGoneError, Exchange
from router.rules import errors, headers
from router.rules.errors import Problem
from router.rules.upstream import Upstream

BATCHES = "/v1/batches"
PATHS = ("/v1/files", BATCHES)
_OWN_HEADERS = ("Content-Type", "User-Agent", "Accept", "Accept-Encoding")


class JobRelay:
    """Moves the calls of the Batch API between clients and the upstream that has the jobs."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        desk: Desk,
        *,
        upstream: str,
        default_model: str,
        idle_s: float,
        drop_authorization: bool,
    ) -> None:
        """`upstream`: its URL, `any`, or empty where there is none. `default_model`: of new batches
        that name none, empty where there is none."""
        self._session = session
        self._desk = desk
        self._upstream = upstream
        self._default_model = default_model
        self._idle_s = idle_s
        self._drop_authorization = drop_authorization

    async def forward(self, x: Exchange) -> web.StreamResponse | Problem:
        """A Problem where nothing has reached the client. Raises ClientGoneError."""
        upstream = self._choose(x.request)
        if isinstance(upstream, Problem):
            return upstream
        sent = headers.to_upstream(
            x.request.headers,
            x.request_id,
            upstream.spec.key,
            drop_authorization=self._drop_authorization,
        )
        if x.request.content_length is not None:
            sent["Content-Length"] = str(x.request.content_length)
        try:
            async with asyncio.timeout(self._idle_s) as clock:
                body = self._body(x, clock) if x.request.can_read_body else None
                async with self._session.request(
                    x.request.method,
                    URL(upstream.url + x.request.rel_url.raw_path_qs, encoded=True),
                    data=body,
                    headers=sent,
                    skip_auto_headers=_OWN_HEADERS,
                    allow_redirects=False,
                ) as answer:
                    return await self._answer(x, upstream, answer, clock)
        except TimeoutError:
            return self._broken(x, f"The upstream {upstream.url} was silent for too long.", 504)
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, ClientGoneError):
                raise
            what = error or type(error).__name__
            return self._broken(x, f"The upstream {upstream.url} failed: {what}.", 502)

    def _choose(self, request: web.BaseRequest) -> Upstream | Problem:
        if not self._upstream:
            message = (
                "This router passes no files and batches on: BATCH_UPSTREAM names no upstream. "
                "Allowed: the URL of one of its upstreams, or 'any' where they share a database."
            )
            return Problem(501, "invalid_request_error", "no_batch_upstream", message)
        candidates = self._candidates(request)
        if isinstance(candidates, Problem):
            return candidates
        now = self._desk.now()
        usable = [upstream for upstream in candidates if upstream.usable(now)]
        if not usable:
            message = (
                f"No upstream for files and batches is ready (BATCH_UPSTREAM {self._upstream})."
            )
            return errors.unavailable(message, "no_upstream_ready")
        return min(usable, key=lambda upstream: upstream.in_flight)

    def _candidates(self, request: web.BaseRequest) -> Sequence[Upstream] | Problem:
        fleet = self._desk.fleet
        if self._upstream != ANY:
            return [upstream for upstream in fleet if upstream.url == self._upstream]
        if (request.method, request.path) != ("POST", BATCHES):
            return list(fleet)
        # a batch gets the model of the server that takes it in, and its lines may name no other
        if not fleet.all_probed():
            return []  # the models are not known yet
        known = list(fleet.models())
        model = request.headers.get("X-Model") or self._default_model
        if model:
            return fleet.serving(model) or errors.unknown_model(model, known)
        if len(known) > 1:
            message = (
                "The servers have several models, so a batch must say by the X-Model header which "
                f"one its lines name, all available models: {', '.join(known)}."
            )
            return Problem(400, "invalid_request_error", "model_required", message, "X-Model")
        return list(fleet)

    async def _body(self, x: Exchange, clock: asyncio.Timeout) -> AsyncIterator[bytes]:
        async for chunk in x.request.content.iter_any():
            clock.reschedule(self._desk.now() + self._idle_s)
            yield chunk

    async def _answer(
        self,
        x: Exchange,
        upstream: Upstream,
        answer: aiohttp.ClientResponse,
        clock: asyncio.Timeout,
    ) -> web.StreamResponse:
        out = headers.to_client(answer.headers, x.request_id, upstream.url)
        response = web.StreamResponse(status=answer.status, headers=out)
        response.content_length = answer.content_length
        x.begun_s = self._desk.now() - x.started
        x.sent = response
        try:
            await response.prepare(x.request)
        except OSError:
            raise ClientGoneError from None
        async for chunk in answer.content.iter_any():
            clock.reschedule(self._desk.now() + self._idle_s)
            try:
                await response.write(chunk)
            except OSError:
                raise ClientGoneError from None
        await response.write_eof()
        return response

    @staticmethod
    def _broken(x: Exchange, message: str, status: int) -> Problem:
        """Of an answer that has begun nothing can be said any more: its connection is cut."""
        if x.sent is None:
            return errors.upstream_failed(message, status)
        x.broken = message
        if x.request.transport is not None:
            x.request.transport.abort()
        raise ClientGoneError
