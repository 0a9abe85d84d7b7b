"""What is recorded: an iteration row by row, a request once it has ended, and the history, which
keeps the newest of them. Every reported figure is computed from these records.

The history is always on: it takes some tenths of a microsecond and 25 bytes per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

from requested import ServiceClass

HISTORY_RECORDS = 2**13  # kept at most,
HISTORY_ROWS = 2**19  # and fewer if batches are large, so that it takes about 13 MB

# prefill: everything before the first token, computed at once; chunk: a part of it; decode: what
# the newest iteration yielded, one token unless a constraint forced more; held: done, keeps its row
# until its batch ends; paused: resident, advanced by nothing
Kind = Literal["prefill", "chunk", "decode", "held", "paused"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PREFILL, CHUNK, DECODE, HELD, PAUSED = range(len(KINDS))


class Row(NamedTuple):
    """A resident request's part in an iteration."""

    request: int
    slot: int  # of the batch: the lowest free one at admission, kept until the request leaves
    num_tokens: int  # computed, accepted drafts included
    kind: Kind
    accepted: int = 0  # drafts, which are also among its tokens
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """`Row`s by column: objects would take eight times the memory."""

    requests: Sequence[int] = ()
    slots: Sequence[int] = ()
    token_counts: Sequence[int] = ()
    kinds: bytes = b""  # indices of KINDS
    accepted: Sequence[int] = ()  # drafts; empty, as is the next: no row had any
    rejected: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[Row]:
        none = [0] * len(self.kinds)
        for request, slot, num_tokens, kind, accepted, rejected in zip(
            self.requests,
            self.slots,
            self.token_counts,
            self.kinds,
            self.accepted or none,
            self.rejected or none,
            strict=True,
        ):
            yield Row(request, slot, num_tokens, KINDS[kind], accepted, rejected)


@dataclass(slots=True)
class IterationRecord:
    """An iteration: what was planned, with the state at its start, and then what came of it.
    Recorders receive it once it has succeeded, and do not change it."""

    batch_size: int  # rows, those that are held included
    num_tokens: int = 0  # computed, without padding and rejected drafts
    attended: int = 0  # query-key pairs, without padding
    context: int = 0  # keys read: in each row, those of its tokens and of all before them
    with_deferred: bool = False  # deferred requests were waiting or resident
    deferred_tokens: int = 0  # computed for deferred requests
    rows: Rows = Rows()
    num_waiting: int = 0  # requests
    used_blocks: int = 0  # of KV memory, as are the next two
    cached_blocks: int = 0
    free_blocks: int = 0
    preempted: Sequence[int] = ()  # requests preempted since the previous iteration
    # known when it has ended
    start_s: float = 0.0
    duration_s: float = 0.0
    num_positions: int = 0  # computed, padding included
    padding: int = 0
    num_drawn: int = 0  # rows whose requests received tokens
    num_generated: int = 0  # tokens that they received
    deferred_generated: int = 0
    accepted_drafts: int = 0  # also among the tokens computed, and those generated
    rejected_drafts: int = 0
    # since the previous token: class, seconds, and number of requests that waited so long
    gaps: Sequence[tuple[ServiceClass, float, int]] = ()


def counted(starts: Sequence[int], counts: Sequence[int]) -> tuple[int, int, int]:
    """Tokens, query-key pairs and keys of rows that compute so many tokens from there on. A row
    without tokens reads no keys."""
    ends = [start + n for start, n in zip(starts, counts, strict=True) if n]
    num_tokens, context = sum(counts), sum(ends)
    if num_tokens == len(ends):
        return num_tokens, context, context
    attended = sum([n * b + n * (n + 1) // 2 for n, b in zip(counts, starts, strict=True)])
    return num_tokens, attended, context


End = Literal["length", "stop", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class RequestRecord:
    arrival_s: float
    admitted_s: float | None  # None: never admitted
    first_token_s: float | None
    last_token_s: float | None
    end_s: float
    prompt_tokens: int
    max_tokens: int
    generated: int
    num_preemptions: int
    service_class: ServiceClass
    end: End
    # prompt tokens found in the prefix cache; None: not looked up
    cached_tokens: int | None = None
    accepted_drafts: int = 0
    rejected_drafts: int = 0

    @property
    def completed(self) -> bool:
        return self.end in ("length", "stop")

    # of a completed request

    @property
    def queue_s(self) -> float:
        assert self.admitted_s is not None
        return self.admitted_s - self.arrival_s

    @property
    def ttft_s(self) -> float:
        assert self.first_token_s is not None
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """(end - first token) / (tokens - 1): None for a single token."""
        assert self.first_token_s is not None
        if self.generated < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.generated - 1)

    @property
    def latency_s(self) -> float:
        return self.end_s - self.arrival_s


class Recorder(Protocol):
    """Receives records, from which every reported figure is computed."""

    def iteration(self, record: IterationRecord) -> None: ...

    def request(self, record: RequestRecord) -> None: ...

    def busy(self, start_s: float, end_s: float) -> None:
        """A busy period: the queue or the batch held requests all the time."""


PHASES = ("prefill", "decode")


def phase_of(kinds: bytes) -> str:
    """Of PHASES: `decode` if none of the rows is in prefill or computes a part of it."""
    return "prefill" if PREFILL in kinds or CHUNK in kinds else "decode"


@dataclass(frozen=True, slots=True)
class Arrived:
    """The loop accepted a request."""

    request: int
    at_s: float
    prompt_tokens: int
    max_tokens: int
    service_class: ServiceClass
    request_id: str | None = None  # its client's; several sequences may share it
    # as in seams.Request; of a user, the end user where there is one
    user: int = 0
    program: int | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A request ended, admitted or not."""

    request: int
    record: RequestRecord


Event = Arrived | IterationRecord | Ended


class Newest(NamedTuple):
    """Events that a reader of the history has not read. `next`: the number to read from then."""

    events: Sequence[Event]
    next: int
    missed: int  # events that were overwritten before it read them


class History:
    """The newest events, numbered from 0. One thread adds, any thread may read, and neither waits:
    a reader copies, and drops what was overwritten meanwhile."""

    def __init__(self, max_resident: int) -> None:
        self.most = max(2, min(HISTORY_RECORDS, HISTORY_ROWS // max_resident))
        self._events: list[Event | None] = [None] * self.most
        self._next = 0

    def add(self, event: Event) -> None:
        self._events[self._next % self.most] = event
        self._next += 1  # after the event is stored

    def since(self, number: int) -> Newest:
        """The events from `number` on that are still kept."""
        end = self._next
        first = max(number, self._oldest)
        copied = [self._events[i % self.most] for i in range(first, end)]
        late = max(0, self._oldest - first)
        events = [event for event in copied[late:] if event is not None]
        return Newest(events, max(number, end), max(0, min(first + late, end) - number))

    @property
    def _oldest(self) -> int:
        """The oldest event that is not being overwritten."""
        return max(0, self._next + 1 - self.most)
