"""Relays calls about files, batches and stored responses to the upstream that keeps them, or to any
upstream if they share a database.

Bodies and answers are passed on as they arrive, so a file of any size takes no memory here. The
calls take no place on an upstream, since they run no inference. They are never retried, since the
router does not keep their bodies.
"""

from collections.abc import Sequence

from router.config import ANY
from router.dispatching import AsyncDispatcher
from router.http.exchange import ProxiedRequest
from router.http.forward import Forwarder
from router.http.server import ClientRequest
from router.rules.messages import errors
from router.rules.messages.errors import Problem
from router.rules.responses import PATH as RESPONSES
from router.rules.responses import id_in
from router.rules.upstream import Upstream

BATCHES = "/v1/batches"
PATHS = ("/v1/files", BATCHES)


class JobRelay:
    """Relays calls between clients and the upstream that has the jobs, or made the response."""

    def __init__(
        self,
        forwarder: Forwarder,
        dispatcher: AsyncDispatcher,
        *,
        upstream: str,
        default_model: str,
        idle_s: float,
    ) -> None:
        """`upstream`: its URL, `any`, or empty if there is none. `default_model`: for new batches
        that name none; empty if there is none."""
        self._forwarder = forwarder
        self._dispatcher = dispatcher
        self._upstream = upstream
        self._default_model = default_model
        self._idle_s = idle_s

    async def forward(self, x: ProxiedRequest) -> Problem | None:
        """Returns a Problem if nothing has reached the client. Raises ClientGoneError."""
        upstream = self._choose(x.request)
        if isinstance(upstream, Problem):
            return upstream
        body = x.request.body if x.request.has_body else bytearray()
        return await self._forwarder.relay(x, upstream, body, self._idle_s)

    def keeper(self, response_id: str) -> Upstream | None:
        """The upstream that keeps a response; None if any may, since they share a database, or
        since the response was not made through a router."""
        return None if self._upstream == ANY else self._dispatcher.fleet.keeper(response_id)

    def _choose(self, request: ClientRequest) -> Upstream | Problem:
        if not self._upstream and not request.path.startswith(RESPONSES):
            message = (
                "This router does not serve files and batches: BATCH_UPSTREAM is not set. "
                "Allowed: the URL of one of its upstreams, or 'any' if they share a database."
            )
            return Problem(501, "invalid_request_error", "no_batch_upstream", message)
        candidates = self._candidates(request)
        if isinstance(candidates, Problem):
            return candidates
        now = self._dispatcher.now()
        usable = [upstream for upstream in candidates if upstream.usable(now)]
        if not usable:
            message = "No upstream that keeps what is asked for is ready."
            return errors.unavailable(message, "no_upstream_ready")
        return min(usable, key=lambda upstream: upstream.in_flight)

    def _candidates(self, request: ClientRequest) -> Sequence[Upstream] | Problem:
        fleet = self._dispatcher.fleet
        if request.path.startswith(RESPONSES):
            keeper = self.keeper(id_in(request.path))
            return list(fleet) if keeper is None else [keeper]
        if self._upstream != ANY:
            return [upstream for upstream in fleet if upstream.url == self._upstream]
        if (request.method, request.path) != ("POST", BATCHES):
            return list(fleet)
        # a batch gets the model of the server that accepts it; its lines may name no other
        if not fleet.all_probed():
            return []  # the models are not known yet
        known = list(fleet.models())
        model = request.headers.get("X-Model") or self._default_model
        if model:
            if fleet.complete():
                return fleet.serving(model) or errors.unknown_model(model, known)
            return fleet.serving(model)
        if len(known) > 1:
            message = (
                "The servers have several models: name the batch's model in the X-Model header, "
                f"all available models: {', '.join(known)}."
            )
            return Problem(400, "invalid_request_error", "model_required", message, "X-Model")
        return list(fleet)
