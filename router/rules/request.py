"""A request as the dispatcher sees it, its states and its outcomes. Pure data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from router.rules.limits import OverLimit
from router.rules.load import RequestWork
from router.rules.upstream import Upstream


class RequestState(Enum):
    """Where a request is. WAITING → PLACED or REFUSED; PLACED → RELEASED; RELEASED → WAITING."""

    WAITING = auto()
    PLACED = auto()
    RELEASED = auto()
    REFUSED = auto()


class NoPlace(Enum):
    """Why a request gets no upstream."""

    UNKNOWN_MODEL = "unknown_model"
    QUEUE_FULL = "queue_full"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"
    RATE_LIMIT = "rate_limit"


class AttemptEnd(Enum):
    """How a request on an upstream ended, as the breaker sees it."""

    SUCCESS = auto()  # a complete answer without an error
    REFUSED = auto()  # a complete answer that blames the request
    BUSY = auto()  # 429 or 503: overloaded, not broken
    SLOW = auto()  # 504, no answer in time, a deferred request that pauses: nothing is proven
    FAILURE = auto()  # another 5xx, a broken connection: the server or this request is the cause
    UNREACHABLE = auto()  # no connection: no request can be the cause
    DEPARTED = auto()  # the client left: nothing is proven


def outcome_of(status: int) -> AttemptEnd:
    """The outcome of a complete answer with this status."""
    if status < 400:
        return AttemptEnd.SUCCESS
    if status in (429, 503):
        return AttemptEnd.BUSY
    if status < 500 or status in (501, 505):  # it does not support the request
        return AttemptEnd.REFUSED
    return AttemptEnd.SLOW if status == 504 else AttemptEnd.FAILURE


@dataclass(frozen=True, slots=True)
class DispatchLimits:
    """`timeout_s`: longest wait for a place, from arrival. `wait_for_s`: longest wait for an
    upstream to become ready. `max_queue`: most waiting requests per model. `max_attempts`: most
    upstreams tried per request. Those of a minute are per client; 0: any number."""

    timeout_s: float = 600.0
    wait_for_s: float = 5.0
    max_queue: int = 1000
    max_attempts: int = 3
    requests_per_minute: int = 0
    tokens_per_minute: int = 0


@dataclass(slots=True, eq=False)
class RoutedRequest:
    """A request that needs a place on an upstream. `prefixes`: hashes of its session and of ever
    longer beginnings of its prompt, for the prefix policy. `only`: the upstream that keeps what it
    continues; None: any will do. `client`: who sent it; "": each request counts as another
    client's. `repeatable`: it changes nothing on a server, so that it may be sent again after a
    server may have acted on it. `priority` (a lower number is more urgent) and `user`: for a fair
    queue; "": nobody's. The dispatcher sets what follows `work`."""

    model: str
    deferred: bool = False
    prefixes: Sequence[int] = ()
    only: Upstream | None = None
    client: str = ""
    repeatable: bool = True
    priority: int = 0
    user: str = ""
    work: RequestWork = field(default_factory=RequestWork)
    seq: int = 0
    arrived: float = 0.0
    deadline: float = 0.0
    state: RequestState = RequestState.WAITING
    refusal: NoPlace | None = None
    over_limit: OverLimit | None = None
    charged: float = 0.0  # tokens, against the limit of a minute
    upstream: Upstream | None = None
    tried: list[Upstream] = field(default_factory=list)
    suspect: bool = False  # it failed on an upstream and may be the cause
    may_have_acted: bool = False  # an upstream received some of it
    # failures, with their epochs
    unproven: list[tuple[Upstream, int]] = field(default_factory=list)
    queued_since: float = 0.0
    placed_at: float = 0.0
    queued_s: float = 0.0
    epoch: int = 0

    @property
    def bound(self) -> bool:
        """It may not use all upstreams of its model."""
        return bool(self.tried) or self.only is not None

    def placed_on(self) -> Upstream:
        """The upstream whose place it holds. Raises RuntimeError if it holds none."""
        if self.state is not RequestState.PLACED or self.upstream is None:
            raise RuntimeError(f"the request holds no place, it is {self.state}")
        return self.upstream
