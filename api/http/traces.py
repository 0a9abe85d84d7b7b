"""A trace of each request: its HTTP span, a `generate` span for each sequence with Text Generation
Inference's attribute names, and in it the spans `queue`, `prefill` and `decode`.

The last three are made from the request's record after its response, so that traces cost the engine
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from flask import Response, g, request

from engine.inference import Inference
from telemetry.tracing import Traced


def end_with(response: Response, trace: Traced, model: str) -> None:
    """Ends the trace of the present request with its response. `model`: its name in the spans."""
    route = request.url_rule.rule if request.url_rule is not None else ""
    trace.span.update_name(f"{request.method} {route}".rstrip())
    attributes = {
        "http.request.method": request.method,
        "url.path": request.path,
        "http.response.status_code": response.status_code,
        "request.id": g.request_id,
    }
    generations: Sequence[TracedGeneration] = g.get("generations", ())
    failed = f"status {response.status_code}" if response.status_code >= 500 else None

    def end() -> None:
        for generation in generations:
            generation.end(model)
        trace.end(time.time_ns(), attributes, error=failed)

    response.call_on_close(end)  # a stream's response is complete only then


class TracedGeneration:
    """The span of one sequence that is about to be queued. `clock`: the clock of the records."""

    def __init__(self, parent: Traced, inference: Inference, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queued_s = clock()
        self._zero_ns = time.time_ns() - round(self._queued_s * 1e9)
        self._inference = inference
        self._trace = parent.begin("generate", self._at(inference.arrival_s))
        inference.trace = self._trace.headers["traceparent"]

    def _at(self, at_s: float) -> int:
        return self._zero_ns + round(at_s * 1e9)

    def end(self, model: str) -> None:
        inference, record = self._inference, self._inference.record
        # without a record its client has just disconnected
        end_s = self._clock() if record is None else record.end_s
        arrival_s = inference.arrival_s
        admitted_s = inference.admitted_s if inference.admitted_s is not None else end_s
        first_s = inference.first_token_s if inference.first_token_s is not None else end_s
        self._trace.part("queue", self._at(self._queued_s), self._at(admitted_s))
        if inference.admitted_s is not None:
            self._trace.part("prefill", self._at(admitted_s), self._at(first_s))
        if inference.first_token_s is not None:
            self._trace.part("decode", self._at(first_s), self._at(end_s))
        tokens = inference.received
        self._trace.end(
            self._at(end_s),
            {
                "total_time": duration(end_s - arrival_s),
                "validation_time": duration(self._queued_s - arrival_s),
                "queue_time": duration(admitted_s - self._queued_s),
                "inference_time": duration(end_s - admitted_s),
                "time_per_token": duration((end_s - admitted_s) / max(1, tokens)),
                "seed": str(inference.sampling.seed),
                "gen_ai.request.model": model,
                "gen_ai.usage.input_tokens": inference.prompt_tokens,
                "gen_ai.usage.output_tokens": tokens,
                "preemptions": inference.num_preemptions,
                "end": record.end if record is not None else "unfinished",
            },
            error=inference.error,
        )


def duration(seconds: float) -> str:
    """In Text Generation Inference's format: `850µs`, `12.5ms`, `1.25s`."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.9g}{unit}"
    return f"{max(0.0, seconds) * 1e6:.9g}µs"
