"""Runs the dispatcher on an event loop: a future for each waiting request, and a timer while there
are any. Only this module combines asyncio with the pure state."""

import asyncio
from time import monotonic

from router.rules.dispatch import Dispatcher
from router.rules.fleet import Upstreams
from router.rules.policies import RoutingPolicy
from router.rules.request import DispatchLimits, RequestState, RoutedRequest

LOOK_S = 0.05  # how late at most a change, such as the end of a pause or of a wait, is seen


class AsyncDispatcher(Dispatcher):
    """Assigns places on upstreams. Create it in a running event loop and use it only there."""

    def __init__(self, fleet: Upstreams, policy: RoutingPolicy, limits: DispatchLimits) -> None:
        super().__init__(fleet, policy, limits, self._end_wait)
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def place(self, request: RoutedRequest) -> None:
        """Returns when a new or a released request is placed or refused. If cancelled, the caller
        must `leave`."""
        (self.retry if request.tried else self.arrive)(request, monotonic())
        if request.state is RequestState.WAITING:
            waiter = self._waiters[request.seq] = self._loop.create_future()
            self._look_later()
            try:
                await waiter
            finally:
                del self._waiters[request.seq]

    def _end_wait(self, request: RoutedRequest) -> None:
        waiter = self._waiters.get(request.seq)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _look_later(self) -> None:
        if self._timer is None and self._waiters:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        self.tick(monotonic())
        self._look_later()
