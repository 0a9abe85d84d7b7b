"""Records of the loop: sums of each iteration and each request, for statistics; and the history,
which keeps the newest iterations row by row.

The history is always on: it takes some tenths of a microsecond and 25 bytes per row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from engine.inference import Inference
from seams import End, IterationRecord, Memory, Outcome, RequestRecord, ServiceClass

HISTORY_RECORDS = 2**13  # kept at most,
HISTORY_ROWS = 2**19  # and fewer if batches are large, so that it takes about 13 MB

# prefill: everything before the first token, computed at once; chunk: a part of it; decode: the
# newest generated token; held: done, keeps its row until its batch ends; paused: resident, advanced
# by nothing
Kind = Literal["prefill", "chunk", "decode", "held", "paused"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PREFILL, CHUNK, DECODE, HELD, PAUSED = range(len(KINDS))


class Row(NamedTuple):
    """A resident request's part in an iteration."""

    request: int
    lane: int  # its slot of the batch: the lowest free one at admission, kept until it leaves
    tokens: int  # computed
    kind: Kind


@dataclass(frozen=True, slots=True)
class Rows:
    """`Row`s by column: objects would take eight times the memory."""

    requests: Sequence[int]
    lanes: Sequence[int]
    tokens: Sequence[int]
    kinds: bytes  # indices of KINDS

    def __len__(self) -> int:
        return len(self.kinds)

    def __iter__(self) -> Iterator[Row]:
        for request, lane, tokens, kind in zip(
            self.requests, self.lanes, self.tokens, self.kinds, strict=True
        ):
            yield Row(request, lane, tokens, KINDS[kind])


@dataclass(frozen=True, slots=True)
class Arrived:
    """The loop accepted a request."""

    request: int
    at_s: float
    prompt_tokens: int
    max_tokens: int
    service_class: ServiceClass
    request_id: str | None = None  # its client's; several sequences may share it


@dataclass(frozen=True, slots=True)
class Iterated:
    """A successful iteration, with the state at its start."""

    sums: IterationRecord
    rows: Rows
    waiting: int  # requests
    used: int  # blocks of KV memory, as are the next two
    cached: int
    free: int
    preempted: Sequence[int]  # requests preempted since the previous iteration

    @property
    def padding(self) -> int:
        return self.sums.positions - self.sums.tokens


@dataclass(frozen=True, slots=True)
class Ended:
    """A request ended, admitted or not."""

    request: int
    record: RequestRecord


Event = Arrived | Iterated | Ended


class News(NamedTuple):
    """New events for a reader of the history. `next`: the number to read from next time."""

    events: Sequence[Event]
    next: int
    missed: int  # events that were overwritten before it read them


class History:
    """The newest events, numbered from 0. One thread adds, any thread may read, and neither waits:
    a reader copies, and drops what was overwritten meanwhile."""

    def __init__(self, max_batch_size: int) -> None:
        self.most = max(2, min(HISTORY_RECORDS, HISTORY_ROWS // max_batch_size))
        self._events: list[Event | None] = [None] * self.most
        self._next = 0

    def add(self, event: Event) -> None:
        self._events[self._next % self.most] = event
        self._next += 1  # after the event is stored

    def since(self, number: int) -> News:
        """The events from `number` on that are still kept."""
        end = self._next
        first = max(number, self._oldest)
        copied = [self._events[i % self.most] for i in range(first, end)]
        late = max(0, self._oldest - first)
        events = [event for event in copied[late:] if event is not None]
        return News(events, max(number, end), max(0, min(first + late, end) - number))

    @property
    def _oldest(self) -> int:
        """The oldest event that is not being overwritten."""
        return max(0, self._next + 1 - self.most)


def arrived(inference: Inference) -> Arrived:
    return Arrived(
        inference.id,
        inference.arrival_s,
        inference.prompt_tokens,
        inference.max_tokens,
        inference.service_class,
        inference.request_id,
    )


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """What an iteration computes, with the state at its start."""

    batch: int  # rows
    tokens: int
    attended: int
    context: int
    with_deferred: bool  # deferred requests are waiting or resident
    deferred_tokens: int
    rows: Rows
    waiting: int
    used: int
    cached: int
    free: int


def planned_work(
    advance: Sequence[tuple[Inference, int]],
    hold: Sequence[Inference],
    resident: Mapping[int, Inference],
    admitted: Sequence[Inference],
    waiting: int,
    deferred: int,
    memory: Memory,
) -> PlannedWork:
    """Call it after admissions and before the requests count their tokens as computed. Works column
    by column, which takes a third of the time of a loop over the rows."""
    requests: Sequence[Inference]
    counts: Sequence[int]
    requests, counts = zip(*advance, strict=True)
    before = [inference.computed for inference in requests]
    tokens, context = sum(counts), sum(before) + sum(counts)
    attended = context
    if tokens > len(counts):
        attended = sum([n * b + n * (n + 1) // 2 for n, b in zip(counts, before, strict=True)])
    new = {inference.id for inference in admitted}
    kinds = [
        DECODE
        if n == 1 and b >= i.prompt_tokens
        else PREFILL
        if i.id in new and b + n == i.known
        else CHUNK
        for i, n, b in zip(requests, counts, before, strict=True)
    ]
    batch = len(advance) + len(hold)
    if len(resident) > len(advance):
        planned = {inference.id for inference in (*requests, *hold)}
        paused = [i for i in resident.values() if i.id not in planned and not i.done]
        requests = [*requests, *hold, *paused]
        counts = [*counts, *[0] * (len(hold) + len(paused))]
        kinds += [HELD] * len(hold) + [PAUSED] * len(paused)
    rows = Rows(
        tuple([inference.id for inference in requests]),
        tuple([inference.lane for inference in requests]),
        tuple(counts),
        bytes(kinds),
    )
    return PlannedWork(
        batch,
        tokens,
        attended,
        context,
        deferred > 0,
        sum(n for i, n in advance if i.service_class == "deferred") if deferred else 0,
        rows,
        waiting,
        memory.used,
        memory.cached,
        memory.budget - memory.used - memory.cached,
    )


def iteration_record(
    work: PlannedWork, batch: Sequence[Inference], outcome: Outcome, start_s: float, end_s: float
) -> IterationRecord:
    """Call it before the requests of the rows (`batch`) receive their tokens."""
    rows = zip(batch, outcome.tokens, strict=True)
    given = [(i, len(tokens)) for i, tokens in rows if tokens and i.end is None]
    # most rows had their last token in the same iteration: few different gaps to keep
    since = Counter([(inference.service_class, inference.last_token_s) for inference, _ in given])
    gaps = [(of, end_s - at_s, n) for (of, at_s), n in since.items() if at_s is not None]
    return IterationRecord(
        start_s=start_s,
        duration_s=end_s - start_s,
        rows=work.batch,
        tokens=work.tokens,
        positions=outcome.positions,
        generated=sum([tokens for _, tokens in given]),
        attended=work.attended,
        context=work.context,
        with_deferred=work.with_deferred,
        deferred_tokens=work.deferred_tokens,
        deferred_generated=sum([n for i, n in given if i.service_class == "deferred"])
        if work.deferred_tokens
        else 0,
        gaps=tuple(gaps),
    )


def iterated(work: PlannedWork, sums: IterationRecord, preempted: Sequence[int]) -> Iterated:
    return Iterated(
        sums, work.rows, work.waiting, work.used, work.cached, work.free, tuple(preempted)
    )


def request_record(inference: Inference, end: End, end_s: float) -> RequestRecord:
    return RequestRecord(
        arrival_s=inference.arrival_s,
        admitted_s=inference.admitted_s,
        first_token_s=inference.first_token_s,
        last_token_s=inference.last_token_s,
        end_s=end_s,
        prompt_tokens=inference.prompt_tokens,
        max_tokens=inference.max_tokens,
        generated=len(inference.ids) - inference.prompt_tokens,
        preemptions=inference.preemptions,
        service_class=inference.service_class,
        end=end,
        cached_tokens=inference.cached_tokens,
    )
