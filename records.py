"""The records that the loop makes of what it did: one of each iteration, one of each request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from inference import Inference
from seams import Advance, IterationRecord, Outcome, RequestRecord, ServiceClass


@dataclass(frozen=True, slots=True)
class PlannedWork:
    """What an iteration computes, as it is when it starts."""

    rows: int
    tokens: int
    attended: int
    context: int
    deferred_tokens: int


def planned_work(advance: Sequence[Advance], held: int) -> PlannedWork:
    """Made before the requests count their tokens as computed. `held`: rows that keep a place."""
    tokens = attended = context = deferred_tokens = 0
    for request, new in advance:
        before = request.computed
        tokens += new
        attended += new * before + new * (new + 1) // 2
        context += before + new
        if request.service_class == "deferred":
            deferred_tokens += new
    return PlannedWork(len(advance) + held, tokens, attended, context, deferred_tokens)


def iteration_record(
    work: PlannedWork, batch: Sequence[Inference], outcome: Outcome, start_s: float, end_s: float
) -> IterationRecord:
    """Made before the requests of the rows (`batch`) are given their tokens."""
    generated = deferred_generated = 0
    # most rows had their last token in the same iteration: few different gaps to keep
    since: dict[tuple[ServiceClass, float | None], int] = {}
    for inference, tokens in zip(batch, outcome.tokens, strict=True):
        if tokens and inference.end is None:
            generated += len(tokens)
            if inference.service_class == "deferred":
                deferred_generated += len(tokens)
            key = inference.service_class, inference.last_token_s
            since[key] = since.get(key, 0) + 1
    gaps = [(of, end_s - at_s, n) for (of, at_s), n in since.items() if at_s is not None]
    return IterationRecord(
        start_s=start_s,
        duration_s=end_s - start_s,
        rows=work.rows,
        tokens=work.tokens,
        positions=outcome.positions,
        generated=generated,
        attended=work.attended,
        context=work.context,
        deferred_tokens=work.deferred_tokens,
        deferred_generated=deferred_generated,
        gaps=tuple(gaps),
    )


def request_record(inference: Inference, end_s: float) -> RequestRecord:
    """Of a request whose `end` is set."""
    assert inference.end is not None
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
        end=inference.end,
    )
