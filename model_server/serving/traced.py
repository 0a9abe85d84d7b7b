"""Traces a model's work: a span for each sequence, in the trace of its request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from model_server.serving.service import ShardService
from seams import Opening, Outcome, Pending, Step
from telemetry.tracing import Traced, Tracing


@dataclass(slots=True)
class _Execution:
    span: Traced
    tokens: int = 0
    iterations: int = 0
    end_ns: int = 0


class TracedModel:
    """Executes like `model`. A sequence's span `execute` ends with its last iteration, and is
    sent when the sequence is released."""

    def __init__(self, model: ShardService, tracing: Tracing, rank: int) -> None:
        self.model = model
        self._tracing = tracing
        self._rank = rank
        self._executions: dict[int, _Execution] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def open(self, new: Sequence[Opening]) -> None:
        self.model.open(new)
        self._end(opening.id for opening in new)  # preempted sequences are opened again
        for opening in new:
            if opening.trace is not None:
                headers = {"traceparent": opening.trace}
                span = self._tracing.serve("execute", headers, time.time_ns())
                self._executions[opening.id] = _Execution(span)

    def start(self, steps: Sequence[Step], released: Sequence[int] = ()) -> Pending:
        pending = self.model.start(steps, released)
        self._end(released)
        return _TracedPending(pending, self, steps)

    def forget(self) -> None:
        self.model.forget()
        self._end(list(self._executions))

    def executed(self, steps: Sequence[Step], outcome: Outcome) -> None:
        now_ns = time.time_ns()
        for i, step in enumerate(steps):
            if execution := self._executions.get(step.id):
                execution.tokens += step.num_tokens + outcome.num_drafts(i)
                execution.iterations += 1
                execution.end_ns = now_ns

    def _end(self, ids: Iterable[int]) -> None:
        for id in ids:
            execution = self._executions.pop(id, None)
            if execution is not None:
                facts = {
                    "rank": self._rank,
                    "tokens": execution.tokens,
                    "iterations": execution.iterations,
                }
                execution.span.end(execution.end_ns or time.time_ns(), facts)


@dataclass(frozen=True, slots=True)
class _TracedPending:
    pending: Pending
    model: TracedModel
    steps: Sequence[Step]

    def result(self) -> Outcome:
        outcome = self.pending.result()
        self.model.executed(self.steps, outcome)
        return outcome
