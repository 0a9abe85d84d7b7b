"""The hash model, except that every request is answered with the same text, a token for each byte,
and then ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from seams import Outcome
from tests.support.hash_model import HashModel, _Iteration
from tests.support.hashed import VOCAB_SIZE

END_ID = VOCAB_SIZE - 1


class ScriptedModel(HashModel):
    """`answer`: a text, or a file that has it; it may be changed between requests."""

    def __init__(self, answer: str | Path = "", **options: Any) -> None:
        super().__init__(**options)
        self.answer = answer

    def _execute(self, iteration: _Iteration) -> Outcome:
        outcome = super()._execute(iteration)
        answer = self.answer if isinstance(self.answer, str) else self.answer.read_text()
        script = [*answer.encode(), END_ID]
        rows = [list(row) for row in outcome.tokens]
        for row, step in zip(rows, iteration.steps, strict=True):
            if row:
                sequence = self._sequences[step.id]
                first = len(sequence.ids) - len(row)
                number = first - sequence.opening.prompt_tokens
                written = script[number : number + len(row)]
                row[:] = written + [END_ID] * (len(row) - len(written))
                sequence.ids[first:] = row
        return replace(outcome, tokens=rows)
