"""A model that records what it executes: `--record FILE` of a model server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from model_server.serving.service import ShardService
from seams import Opening, Outcome, Pending, Step
from telemetry.journal import Journal


class RecordedModel:
    """Executes like `model`. Writes a line for each opened sequence, for each iteration, and when
    all sequences are forgotten, since their numbers then start again."""

    def __init__(self, model: ShardService, journal: Journal) -> None:
        self.model = model
        self._journal = journal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def open(self, new: Sequence[Opening]) -> None:
        self.model.open(new)
        for opening in new:
            self._journal.write(
                {"type": "opened", "sequence": opening.id, "request_id": opening.request_id}
            )

    def start(self, steps: Sequence[Step], released: Sequence[int] = ()) -> Pending:
        start_s = time.monotonic()
        return _RecordedPending(self.model.start(steps, released), self._journal, steps, start_s)

    def forget(self) -> None:
        self.model.forget()
        self._journal.write({"type": "forgotten"})


@dataclass(frozen=True, slots=True)
class _RecordedPending:
    pending: Pending
    journal: Journal
    steps: Sequence[Step]
    start_s: float

    def result(self) -> Outcome:
        outcome = self.pending.result()
        rows = [
            (step.id, step.num_tokens + outcome.num_drafts(i), len(tokens))
            for i, (step, tokens) in enumerate(zip(self.steps, outcome.tokens, strict=True))
        ]
        self.journal.write(
            {
                "type": "iteration",
                "start_s": self.start_s,
                "duration_s": time.monotonic() - self.start_s,
                "rows": rows,  # sequence, tokens computed, tokens drawn
            }
        )
        return outcome
