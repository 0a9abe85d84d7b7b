"""The records that the loop makes of what it did: one of each iteration, one of each request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from inference import Inference
from seams import Advance, IterationRecord, Outcome, RequestRecord


def iteration_record(
    start_s: float, advance: Sequence[Advance], batch: Sequence[Inference], outcome: Outcome
) -> IterationRecord:
    """Made before its requests (`batch`, those of `advance`) are given the tokens."""
    tokens = attended = context = generated = deferred_tokens = deferred_generated = 0
    for step, token in zip(advance, outcome.tokens, strict=True):
        new, before = step.tokens, step.request.computed
        tokens += new
        attended += new * before + new * (new + 1) // 2
        context += before + new
        generated += token is not None
        if step.request.service_class == "deferred":
            deferred_tokens += new
            deferred_generated += token is not None
    end_s = start_s + outcome.duration_s
    # most rows had their last token in the same iteration: few different gaps to keep
    gaps = Counter(
        (inference.service_class, end_s - inference.last_token_s)
        for inference, token in zip(batch, outcome.tokens, strict=True)
        if token is not None and inference.last_token_s is not None
    )
    return IterationRecord(
        start_s=start_s,
        duration_s=outcome.duration_s,
        rows=len(advance),
        tokens=tokens,
        positions=outcome.positions,
        generated=generated,
        attended=attended,
        context=context,
        deferred_tokens=deferred_tokens,
        deferred_generated=deferred_generated,
        gaps=tuple((of, gap_s, times) for (of, gap_s), times in gaps.items()),
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
        generated=inference.generated,
        preemptions=inference.preemptions,
        service_class=inference.service_class,
        end=inference.end,
    )
