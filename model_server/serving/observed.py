"""A model whose work is traced (a span for each sequence, in the trace of its request) and recorded
(`--record FILE`)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from model_server.serving.service import ShardService
from seams import Opening, Outcome, Pending, Step
from telemetry.journal import Journal
from telemetry.tracing import Traced, Tracing


@dataclass(slots=True)
class _Execution:
    span: Traced
    tokens: int = 0
    iterations: int = 0
    end_ns: int = 0


class ObservedModel:
    """Executes like `model`. A sequence's span `execute` ends with its last iteration, and is sent
    when the sequence is released. The record has a line for each opened sequence, for each
    iteration, and when all sequences are forgotten, since their numbers then start again."""

    def __init__(
        self, model: ShardService, tracing: Tracing | None, journal: Journal | None, rank: int
    ) -> None:
        self.model = model
        self._tracing = tracing
        self._journal = journal
        self._rank = rank
        self._executions: dict[int, _Execution] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def open(self, new: Sequence[Opening]) -> None:
        self.model.open(new)
        self._end(opening.id for opening in new)  # preempted sequences are opened again
        for opening in new:
            if self._tracing is not None and opening.trace is not None:
                headers = {"traceparent": opening.trace}
                span = self._tracing.serve("execute", headers, time.time_ns())
                self._executions[opening.id] = _Execution(span)
            self._write("opened", sequence=opening.id, request_id=opening.request_id)

    def start(self, steps: Sequence[Step], released: Sequence[int] = ()) -> Pending:
        start_s = time.monotonic()
        pending = self.model.start(steps, released)
        self._end(released)
        return _ObservedPending(pending, self, steps, start_s)

    def forget(self) -> None:
        self.model.forget()
        self._end(list(self._executions))
        self._write("forgotten")

    def executed(self, steps: Sequence[Step], outcome: Outcome, start_s: float) -> None:
        now_s, now_ns, rows = time.monotonic(), time.time_ns(), []
        for i, step in enumerate(steps):
            computed = step.num_tokens + outcome.num_drafts(i)
            if execution := self._executions.get(step.id):
                execution.tokens += computed
                execution.iterations += 1
                execution.end_ns = now_ns
            rows.append((step.id, computed, len(outcome.tokens[i])))  # computed, drawn
        self._write("iteration", start_s=start_s, duration_s=now_s - start_s, rows=rows)

    def _write(self, type: str, **facts: object) -> None:
        if self._journal is not None:
            self._journal.write({"type": type, **facts})

    def _end(self, ids: Iterable[int]) -> None:
        for id in ids:
            if execution := self._executions.pop(id, None):
                facts = {
                    "rank": self._rank,
                    "tokens": execution.tokens,
                    "iterations": execution.iterations,
                }
                execution.span.end(execution.end_ns or time.time_ns(), facts)


@dataclass(frozen=True, slots=True)
class _ObservedPending:
    pending: Pending
    model: ObservedModel
    steps: Sequence[Step]
    start_s: float

    def result(self) -> Outcome:
        outcome = self.pending.result()
        self.model.executed(self.steps, outcome, self.start_s)
        return outcome
