"""One inference server as the router sees it: pure state, no sockets, no clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from router.rules.breaker import Breaker, State
from router.rules.budget import RetryBudget

# Weight of a new sample in the moving average of the time to first byte.
LATENCY_WEIGHT = 0.2
# A timed-out probe may only mean a busy server, so the first one is forgiven.
TIMEOUTS_FORGIVEN = 1
# The longest back-pressure an upstream may ask for by Retry-After.
MAX_PAUSE_S = 60.0


def half(limit: int) -> int:
    """What deferred requests may take of a limit."""
    return max(1, limit // 2)


@dataclass(frozen=True, slots=True)
class Spec:
    """What the operator says about an upstream.

    `url` is `scheme://host[:port]`. `key` replaces the client's Authorization. `dns`: the host is a
    name whose every address is an upstream (a headless Service). `models`: what it serves, where
    it has no `/v1/models` to ask.
    """

    url: str
    limit: int
    key: str | None = field(default=None, repr=False)
    dns: bool = False
    models: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Upstream:
    """An upstream's counters. `configured`: the spec as its source gave it, while `spec` may have
    been changed since. `models` maps an id to the object `/v1/models` gave for it."""

    spec: Spec
    source: str
    breaker: Breaker
    configured: Spec = field(init=False)
    budget: RetryBudget = field(default_factory=RetryBudget)
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    in_flight: int = 0
    deferred: int = 0  # of those in flight
    latency_s: float | None = None
    probed: bool = False
    ready: bool = False
    draining: bool = False
    paused_until: float = 0.0
    last_error: str = "not probed yet"
    _timeouts: int = 0

    def __post_init__(self) -> None:
        self.configured = self.spec

    @property
    def url(self) -> str:
        return self.spec.url

    def usable(self, now: float) -> bool:
        """Whether it may be expected to take requests: alive, not leaving, breaker not open."""
        return self.ready and not self.draining and self.breaker.state(now) is not State.OPEN

    def free(self, now: float, *, deferred: bool = False) -> bool:
        """Whether one more request may be sent to it now. Deferred ones, which a server may pause
        for long, take half of the places at most, so that immediate ones always find some."""
        return (
            self.in_flight < self.spec.limit
            and not (deferred and self.deferred >= half(self.spec.limit))
            and self.ready
            and not self.draining
            and now >= self.paused_until
            and self.breaker.admits(now)
        )

    def observe_latency(self, seconds: float) -> None:
        """Adds a time to first byte to the moving average."""
        old = self.latency_s
        self.latency_s = seconds if old is None else old + LATENCY_WEIGHT * (seconds - old)

    def pause(self, seconds: float, now: float) -> None:
        """Back-pressure: no new requests for as long as the upstream asked (at most a minute)."""
        self.paused_until = max(self.paused_until, now + min(seconds, MAX_PAUSE_S))

    def probe_succeeded(self, models: Mapping[str, Mapping[str, Any]], seconds: float) -> None:
        """`/v1/models` answered. Its time is a latency sample too, so that an upstream that was
        slow once, and is therefore chosen no more, is not judged by that for ever."""
        self.models = models
        self.probed = self.ready = True
        self.last_error = ""
        self._timeouts = 0
        self.observe_latency(seconds)

    def probe_failed(self, error: str, *, timed_out: bool) -> None:
        """`/v1/models` was refused, broken or (`timed_out`) silent. The models stay known."""
        self.probed = True
        self.last_error = error
        self._timeouts = self._timeouts + 1 if timed_out else 0
        if not timed_out or self._timeouts > TIMEOUTS_FORGIVEN:
            self.ready = False
