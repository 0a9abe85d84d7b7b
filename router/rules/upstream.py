"""One inference server as the router sees it: pure state, no sockets, no clock.

A server that stores responses gets a mark from the router, which depends on its URL alone, and puts
it into their ids. So a router that was restarted, or another one, finds them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from router.rules.breaker import Breaker, BreakerState
from router.rules.budget import RetryBudget
from router.rules.load import UpstreamLoad

# Weight of a new sample in the moving average of the time to first byte.
LATENCY_WEIGHT = 0.2
# A probe may time out because the server is busy, so the first timeout is ignored.
TIMEOUTS_FORGIVEN = 1
# The longest pause that an upstream's Retry-After can cause.
MAX_PAUSE_S = 60.0

RESPONSES = "/v1/responses"


def mark_of(url: str) -> str:
    return hashlib.blake2b(url.encode(), digest_size=4).hexdigest()


def half(limit: int) -> int:
    """The part of a limit that deferred requests may use."""
    return max(1, limit // 2)


@dataclass(frozen=True, slots=True)
class Spec:
    """The operator's description of an upstream.

    `url` is `scheme://host[:port]`. `key` replaces the client's Authorization. `dns`: the host is a
    name, and each of its addresses is an upstream (a headless Service). `models`: the models that
    it serves, if it has no `/v1/models`.
    """

    url: str
    limit: int
    key: str | None = field(default=None, repr=False)
    dns: bool = False
    models: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Upstream:
    """An upstream and its counters. `configured`: the spec from its source; `spec` may have been
    changed since. `models`: the objects of `/v1/models` as JSON, by id."""

    spec: Spec
    source: str
    load: UpstreamLoad = field(default_factory=UpstreamLoad)
    breaker: Breaker = field(default_factory=Breaker)
    url: str = field(init=False)
    configured: Spec = field(init=False)
    mark: int = field(init=False)  # the same in every router
    budget: RetryBudget = field(default_factory=RetryBudget)
    models: Mapping[str, bytes] = field(default_factory=dict)
    in_flight: int = 0
    deferred: int = 0  # of those in flight
    turn: int = 0  # in which it was chosen last, for `RoundRobin`
    latency_s: float | None = None
    probed: bool = False
    ready: bool = False
    draining: bool = False
    paused_until: float = 0.0
    last_error: str = "not probed yet"
    _timeouts: int = 0

    def __post_init__(self) -> None:
        self.url = self.spec.url
        self.configured = self.spec
        self.mark = int(mark_of(self.url), 16) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF

    def usable(self, now: float) -> bool:
        """Whether it is expected to take requests: ready, not draining, breaker not open."""
        return self.ready and not self.draining and self.breaker.state(now) is not BreakerState.OPEN

    def free(self, now: float, *, deferred: bool = False) -> bool:
        """Whether another request may be sent to it now. A server may pause deferred requests for
        long, so they take at most half of the places; the others are for immediate requests."""
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
        """Sends no new requests for as long as the upstream asked for, at most MAX_PAUSE_S."""
        self.paused_until = max(self.paused_until, now + min(seconds, MAX_PAUSE_S))

    def probe_succeeded(self, models: Mapping[str, bytes], seconds: float) -> None:
        """The probe succeeded. Its time counts as a latency sample; otherwise an upstream that was
        slow once, and is no longer chosen, would count as slow for ever."""
        self.models = models
        self.probed = self.ready = True
        self.last_error = ""
        self._timeouts = 0
        self.observe_latency(seconds)

    def probe_failed(self, error: str, *, timed_out: bool) -> None:
        """The probe failed, or (`timed_out`) got no answer in time. The models stay known."""
        self.probed = True
        self.last_error = error
        self._timeouts = self._timeouts + 1 if timed_out else 0
        if not timed_out or self._timeouts > TIMEOUTS_FORGIVEN:
            self.ready = False
