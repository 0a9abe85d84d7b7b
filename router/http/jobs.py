"""Files and batches: to the one upstream that keeps them, or to any of those that share a database.

Bodies and answers pass as they come, so that a file of any size takes no memory here. They take no
upstream's place, since they ask for no inference; nothing is tried again, since a body is gone once
it was passed on.
"""

from collections.abc import Sequence

from aiohttp import web

from router.config import ANY
from router.desk import Desk
from router.http.exchange import Exchange
from router.http.forward import Forwarder, UpstreamFailedError
from router.rules import errors
from router.rules.errors import Problem
from router.rules.upstream import Upstream

BATCHES = "/v1/batches"
PATHS = ("/v1/files", BATCHES)


class JobRelay:
    """Moves the calls of the Batch API between clients and the upstream that has the jobs."""

    def __init__(
        self,
        forwarder: Forwarder,
        desk: Desk,
        *,
        upstream: str,
        default_model: str,
        idle_s: float,
    ) -> None:
        """`upstream`: its URL, `any`, or empty where there is none. `default_model`: of new batches
        that name none, empty where there is none."""
        self._forwarder = forwarder
        self._desk = desk
        self._upstream = upstream
        self._default_model = default_model
        self._idle_s = idle_s

    async def forward(self, x: Exchange) -> web.StreamResponse | Problem:
        """A Problem where nothing has reached the client. Raises ClientGoneError."""
        upstream = self._choose(x.request)
        if isinstance(upstream, Problem):
            return upstream
        body = x.request.content if x.request.can_read_body else bytearray()
        try:
            async with self._forwarder.send(x, upstream, body, self._idle_s) as passage:
                await passage.begin()
                while chunk := await passage.read():
                    await passage.write(chunk)
                return await passage.end()
        except UpstreamFailedError as failure:
            x.broken = str(failure)
            if x.sent is None:
                return failure.problem
            return await self._forwarder.break_off(x, failure.problem)

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
            message = "No upstream for files and batches is ready (BATCH_UPSTREAM)."
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
