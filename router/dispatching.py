"""Runs the dispatcher on an event loop: a future for each waiting request, and a timer while there
are any. Only this module combines asyncio with the pure state."""

import asyncio
from time import monotonic

from router.rules.dispatch import Dispatcher
from router.rules.fleet import Upstreams
from router.rules.policies import RoutingPolicy
from router.rules.queues import Fair
from router.rules.request import DispatchLimits, RequestState, RoutedRequest

LOOK_S = 0.1  # how late at most a change of an upstream, such as the end of a pause, is seen


class AsyncDispatcher(Dispatcher):
    """Assigns places on upstreams. Create it in a running event loop and use it only there."""

    def __init__(
        self, fleet: Upstreams, policy: RoutingPolicy, limits: DispatchLimits, fair: Fair | None
    ) -> None:
        super().__init__(fleet, policy, limits, self._end_wait, fair)
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

    def fleet_changed(self) -> None:
        """Call it after a probe or the operator changed an upstream."""
        self.tick(monotonic())

    def _end_wait(self, request: RoutedRequest) -> None:
        waiter = self._waiters.get(request.seq)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _look_later(self) -> None:
        now = monotonic()
        at = self.next_tick(now)
        if self._timer is None and at is not None:
            self._timer = self._loop.call_later(min(at - now, LOOK_S), self._look)

    def _look(self) -> None:
        self._timer = None
        self.fleet_changed()
        self._look_later()
