"""Relays calls that turn texts into tokens, or back, to any upstream that has the model.

They take no place on an upstream, since they run no inference, and do not wait for one.
"""

from router.dispatching import AsyncDispatcher
from router.http.exchange import ProxiedRequest
from router.http.forward import Forwarder
from router.rules.messages import errors
from router.rules.messages.errors import Problem

PATHS = ("/tokenize", "/detokenize", "/chat_tokenize")


class TokenRelay:
    def __init__(self, forwarder: Forwarder, dispatcher: AsyncDispatcher, *, idle_s: float) -> None:
        self._forwarder = forwarder
        self._dispatcher = dispatcher
        self._idle_s = idle_s

    async def forward(self, x: ProxiedRequest) -> Problem | None:
        """Its body was read. Returns a Problem if nothing has reached the client. Raises
        ClientGoneError."""
        fleet, now = self._dispatcher.fleet, self._dispatcher.now()
        having = fleet.serving(x.model)
        if not having and fleet.complete():
            return errors.unknown_model(x.model, list(fleet.models()))
        result: Problem | None = errors.unavailable(
            f"No upstream with {x.model} is ready.", "no_upstream_ready"
        )
        usable = [upstream for upstream in having if upstream.usable(now)]
        for upstream in sorted(usable, key=lambda upstream: upstream.in_flight):
            result = await self._forwarder.relay(x, upstream, x.body, self._idle_s)
            if result is None:
                break
        return result
