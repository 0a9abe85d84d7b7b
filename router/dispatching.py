"""Runs the dispatcher on an event loop: a future for each waiting request, a timer for the next
tick.

Only this module combines asyncio with the pure state. `now` is the clock of the
loop; uvloop's own reading of it has whole milliseconds.
"""

import asyncio
import time
from collections.abc import Sequence

from router.rules.dispatch import Dispatcher
from router.rules.fleet import Upstreams
from router.rules.load import StatedUsage
from router.rules.policies import RoutingPolicy
from router.rules.queues import Turns
from router.rules.request import AttemptEnd, DispatchLimits, RequestState, RoutedRequest


class AsyncDispatcher:
    """Assigns places on upstreams. Create it in a running event loop and use it only there."""

    def __init__(
        self, fleet: Upstreams, policy: RoutingPolicy, limits: DispatchLimits, turns: Turns
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.fleet = fleet
        self.state = Dispatcher(fleet, policy, limits, self._decided, turns)

    def now(self) -> float:
        return time.monotonic()

    def arrive(self, request: RoutedRequest) -> None:
        self.state.arrive(request, time.monotonic())
        self._arm()

    async def decision(self, request: RoutedRequest) -> RoutedRequest:
        """Returns when the request is placed or refused. If cancelled, the caller must `leave`."""
        if request.state is RequestState.WAITING:
            waiter = self._loop.create_future()
            self._waiters[request.seq] = waiter
            try:
                await waiter
            finally:
                self._waiters.pop(request.seq, None)
        return request

    def began(self, request: RoutedRequest, load: str) -> None:
        self.state.began(request, time.monotonic(), load)
        self._arm()

    def release(
        self,
        request: RoutedRequest,
        outcome: AttemptEnd,
        pause_s: float | None = None,
        usage: StatedUsage | None = None,
    ) -> None:
        self.state.release(request, outcome, time.monotonic(), pause_s, usage)
        self._arm()

    def may_retry(self, request: RoutedRequest) -> bool:
        return self.state.may_retry(request, time.monotonic())

    def retry(self, request: RoutedRequest) -> None:
        self.state.retry(request, time.monotonic())
        self._arm()

    def leave(self, request: RoutedRequest) -> None:
        self.state.leave(request, time.monotonic())
        self._arm()

    def minute_limits(self, request: RoutedRequest) -> dict[str, str]:
        """What the headers of its answer tell its client."""
        return self.state.minutes.headers(request.client, time.monotonic())

    def available(self, models: Sequence[str]) -> str:
        return self.fleet.available(models, time.monotonic())

    def fleet_changed(self) -> None:
        """Call it after a probe or the operator changed an upstream."""
        self.state.tick(time.monotonic())
        self._arm()

    def _decided(self, request: RoutedRequest) -> None:
        waiter = self._waiters.get(request.seq)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _arm(self) -> None:
        at = self.state.next_tick(time.monotonic())
        if self._timer is not None:
            # An early tick does no harm, so the timer is never moved to a later time.
            if at is not None and self._timer.when() <= at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.fleet_changed()
