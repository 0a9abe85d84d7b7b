"""One request's ticket and the words for what becomes of it. Pure data."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from router.rules.upstream import Upstream


class State(Enum):
    """Where a ticket is. WAITING → PLACED or REFUSED; PLACED → RELEASED; RELEASED → WAITING."""

    WAITING = auto()
    PLACED = auto()
    RELEASED = auto()
    REFUSED = auto()


class Refusal(Enum):
    """Why a request gets no upstream."""

    UNKNOWN_MODEL = "unknown_model"
    QUEUE_FULL = "queue_full"
    TIMEOUT = "timeout"
    UNAVAILABLE = "unavailable"


class Outcome(Enum):
    """How a request on an upstream ended, as the breaker sees it."""

    SUCCESS = auto()  # any status but 5xx, the whole body
    BACKPRESSURE = auto()  # 429 or 503: busy, not broken
    FAILURE = auto()  # another 5xx, transport error, dropped body
    DEPARTED = auto()  # the client left: nothing learned


@dataclass(frozen=True, slots=True)
class Limits:
    """`timeout_s`: longest wait for a place, from arrival; `wait_for_s`: longest wait for an
    upstream to become ready; `max_queue`: waiting requests per model; `max_attempts`: upstreams
    tried per request."""

    timeout_s: float = 600.0
    wait_for_s: float = 5.0
    max_queue: int = 1000
    max_attempts: int = 3


@dataclass(slots=True, eq=False)
class Ticket:
    """One request. `prefix`: block hashes of its prompt, for the prefix policy."""

    seq: int
    model: str
    arrived: float
    deadline: float
    deferred: bool = False
    prefix: Sequence[int] = ()
    state: State = State.WAITING
    refusal: Refusal | None = None
    upstream: Upstream | None = None
    tried: list[Upstream] = field(default_factory=list)
    queued_since: float = 0.0
    placed_at: float = 0.0
    queued_s: float = 0.0
    epoch: int = 0

    def placed_on(self) -> Upstream:
        """The upstream whose place it holds; RuntimeError if it holds none."""
        if self.state is not State.PLACED or self.upstream is None:
            raise RuntimeError(f"the ticket holds no place, it is {self.state}")
        return self.upstream
