"""The circuit breaker of one upstream. Pure: callers pass the time.

It is closed until at least `LEAST_FAILURES` and at least half of the last `REMEMBERED` verdicts of
the last `WINDOW_S` seconds are failures. Then it is open for `OPEN_S`, then half-open: it admits
one request at a time, and `CLOSE_AFTER` successes close it again. The states are those of M.
Nygard, *Release It!*, ch. 5 ("Circuit Breaker").

Failures of one client may be the fault of its requests. So at most `FROM_ONE_CLIENT` of them
count, and no single client's failure opens a half-open breaker again, unless it is proven that the
server is the cause: it was not reached, or another server answered the same request.

It uses a rate, because a few failures among many good answers say little about a server. It counts
only the last verdicts, so that a server that dies under load is avoided after ten failures, however
many good answers it gave before.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

LEAST_FAILURES = 5
REMEMBERED = 20
WINDOW_S = 60.0
OPEN_S = 5.0
CLOSE_AFTER = 2
FROM_ONE_CLIENT = 2


class BreakerState(Enum):
    """What the breaker admits. The values are those of the metric."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2


@dataclass(slots=True, eq=False)
class Breaker:
    """Counts verdicts on requests and decides whether the next one may be sent.

    Each request has the epoch in which it was sent. Verdicts of earlier epochs are ignored: a
    stream that began before the breaker opened says nothing about the upstream now.
    """

    epoch: int = 0
    _open_until: float = 0.0
    _state: BreakerState = BreakerState.CLOSED
    # when, whether it failed, and whose request it was
    _verdicts: deque[tuple[float, bool, str]] = field(
        default_factory=lambda: deque(maxlen=REMEMBERED)
    )
    _successes: int = 0  # of trials
    _trial: bool = False

    def state(self, now: float) -> BreakerState:
        """The state at `now`. An open breaker becomes half-open when its time is over."""
        if self._state is BreakerState.OPEN and now >= self._open_until:
            self._enter(BreakerState.HALF_OPEN)
        return self._state

    def admits(self, now: float) -> bool:
        """Whether a request may be sent now."""
        if self._state is BreakerState.CLOSED:
            return True
        return self.state(now) is BreakerState.HALF_OPEN and not self._trial

    def sent(self, now: float) -> int:
        """Records that a request is sent. Returns the epoch for its verdict."""
        if self.state(now) is BreakerState.HALF_OPEN:
            self._trial = True
        return self.epoch

    def began(self, epoch: int) -> None:
        """The request has its first byte, or ended without a verdict. The next trial need not wait
        for it."""
        if epoch == self.epoch:
            self._trial = False

    def success(self, epoch: int, now: float) -> None:
        """The request got a complete answer without a fault of the upstream."""
        if epoch != self.epoch:
            return
        self._trial = False
        self._verdicts.append((now, False, ""))
        if self._state is BreakerState.HALF_OPEN:
            self._successes += 1
            if self._successes >= CLOSE_AFTER:
                self._enter(BreakerState.CLOSED)

    def failure(self, epoch: int, now: float, client: str = "") -> bool:
        """The request failed through the upstream's fault. `client`: who sent it, if the request
        may be the cause. Returns whether a later proof would say nothing new."""
        if epoch != self.epoch:
            return True
        self._trial = False
        recent = [v for v in self._verdicts if v[0] > now - WINDOW_S]
        by_client = [who for _, failed, who in recent if failed]
        if client and by_client.count(client) >= FROM_ONE_CLIENT:
            return False
        self._verdicts.append((now, True, client))
        if self._state is BreakerState.HALF_OPEN:
            opens = not client or bool({*by_client} - {client})
        else:
            failed = [failed for when, failed, _ in self._verdicts if when > now - WINDOW_S]
            opens = sum(failed) >= LEAST_FAILURES and 2 * sum(failed) >= len(failed)
        if opens:
            self._enter(BreakerState.OPEN)
            self._open_until = now + OPEN_S
        return opens or self._state is BreakerState.CLOSED

    def _enter(self, state: BreakerState) -> None:
        self._state = state
        self.epoch += 1
        self._verdicts.clear()
        self._successes = 0
        self._trial = False
