"""Makes the records of requests and iterations from their state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.inference import Inference
from records import (
    CHUNK,
    DECODE,
    HELD,
    PAUSED,
    PREFILL,
    Arrived,
    End,
    IterationRecord,
    RequestRecord,
    Rows,
)
from seams import Drafts, Memory, Outcome, Step


def arrived(inference: Inference) -> Arrived:
    return Arrived(
        inference.id,
        inference.arrival_s,
        inference.prompt_tokens,
        inference.max_tokens,
        inference.service_class,
        inference.request_id,
        inference.end_user or inference.user,
        inference.program,
        inference.priority,
    )


def planned_record(
    advance: Sequence[tuple[Inference, int]],
    hold: Sequence[Inference],
    resident: Mapping[int, Inference],
    admitted: Sequence[Inference],
    num_waiting: int,
    num_deferred: int,
    memory: Memory,
) -> IterationRecord:
    """The record of an iteration that is about to start.

    It is made after admissions and before the requests count their tokens as computed. It works
    column by column, which takes a third of the time of a loop over the rows."""
    requests: Sequence[Inference] = [inference for inference, _ in advance]
    counts: Sequence[int] = [num_tokens for _, num_tokens in advance]
    before = [inference.computed for inference in requests]
    num_tokens, context = sum(counts), sum(before) + sum(counts)
    attended = context
    if num_tokens > len(counts):
        attended = sum([n * b + n * (n + 1) // 2 for n, b in zip(counts, before, strict=True)])
    new = {inference.id for inference in admitted}
    kinds = [
        DECODE
        if n <= i.num_newest and b >= i.prompt_tokens
        else PREFILL
        if i.id in new and b + n == i.known
        else CHUNK
        for i, n, b in zip(requests, counts, before, strict=True)
    ]
    if len(resident) > len(advance):
        planned = {inference.id for inference in (*requests, *hold)}
        paused = [i for i in resident.values() if i.id not in planned and not i.done]
        requests = [*requests, *hold, *paused]
        counts = [*counts, *[0] * (len(hold) + len(paused))]
        kinds += [HELD] * len(hold) + [PAUSED] * len(paused)
    return IterationRecord(
        len(advance) + len(hold),
        num_tokens,
        attended,
        context,
        num_deferred > 0,
        sum(n for i, n in advance if i.service_class == "deferred") if num_deferred else 0,
        Rows(
            tuple([inference.id for inference in requests]),
            tuple([inference.slot for inference in requests]),
            tuple(counts),
            bytes(kinds),
        ),
        num_waiting,
        memory.used,
        memory.cached,
        memory.num_blocks - memory.used - memory.cached,
    )


def complete_record(
    record: IterationRecord,
    batch: Sequence[Inference],
    steps: Sequence[Step],
    outcome: Outcome,
    start_s: float,
    end_s: float,
) -> None:
    """Adds what came of the iteration, before the requests of its rows (`batch`) receive their
    tokens."""
    if outcome.drafts:
        _add_drafts(record, steps, outcome.drafts)
    rows = zip(batch, outcome.tokens, strict=True)
    given = [(i, len(tokens)) for i, tokens in rows if tokens and i.end is None]
    # most rows had their last token in the same iteration: few different gaps to keep
    since = Counter([(inference.service_class, inference.last_token_s) for inference, _ in given])
    gaps = [(of, end_s - at_s, n) for (of, at_s), n in since.items() if at_s is not None]
    record.start_s, record.duration_s = start_s, end_s - start_s
    record.num_positions = outcome.positions
    record.num_drawn = len(given)
    record.num_generated = sum([n for _, n in given])
    if record.deferred_tokens:
        record.deferred_generated = sum([n for i, n in given if i.service_class == "deferred"])
    record.gaps = tuple(gaps)


def _add_drafts(
    record: IterationRecord, steps: Sequence[Step], drafts: Mapping[int, Drafts]
) -> None:
    """Each draft was a row that read the keys of all tokens before it. Accepted ones are tokens of
    their request's row."""
    counts = list(record.rows.token_counts)
    accepted, rejected = [0] * len(counts), [0] * len(counts)
    for i, (computed, kept) in drafts.items():
        keys = steps[i].start + steps[i].num_tokens
        keys = computed * keys + computed * (computed + 1) // 2
        record.attended += keys
        record.context += keys
        counts[i] += kept
        accepted[i], rejected[i] = kept, computed - kept
    record.accepted_drafts, record.rejected_drafts = sum(accepted), sum(rejected)
    record.num_tokens += record.accepted_drafts
    record.rows = replace(
        record.rows,
        token_counts=tuple(counts),
        accepted=tuple(accepted),
        rejected=tuple(rejected),
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
        generated=inference.received,
        num_preemptions=inference.num_preemptions,
        service_class=inference.service_class,
        end=end,
        cached_tokens=inference.cached_tokens,
        accepted_drafts=inference.accepted_drafts,
        rejected_drafts=inference.rejected_drafts,
    )
