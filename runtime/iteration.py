"""An iteration of the local model: its axis of tokens, and its results, which may be read late.

A drawn token is in flight until its iteration is read: it exists on the device only, and its place
among the known ids holds a negative number, -1 - j for token j of that iteration's draws. So the
next iteration can be laid out and launched, and finds the token on the device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.gpt2 import Attend
from runtime.attention import Counts, Span
from runtime.cache import BlockTable
from runtime.errors import with_our_errors
from runtime.grammar.grammars import GrammarError, Grammars
from runtime.grammar.matching import Matching
from runtime.sampling.scoring import Targets, logprobs_by_row
from runtime.transfer import ReadBack
from seams import Opening, Outcome, Step


class KnownSequence:
    """The model's copy of a sequence; a `runtime.sampling.sampler.Known`."""

    __slots__ = ("error", "ids", "matching", "prompt_tokens", "sampling", "scored", "table")

    def __init__(self, opening: Opening, grammars: Grammars | None = None) -> None:
        """Its `error` says why it cannot be continued, through its own fault."""
        self.ids = list(opening.ids)  # extended by drawn tokens; negative: in flight
        self.prompt_tokens = opening.prompt_tokens
        self.sampling = opening.sampling
        self.scored = opening.scored
        self.table = BlockTable()
        self.error: str | None = None
        self.matching: Matching | None = None
        if (constraint := opening.sampling.constraint) is not None:
            if grammars is None:
                self.error = "this model serves none"
                return
            try:
                self.matching = Matching(grammars, constraint, self.ids[self.prompt_tokens :])
            except GrammarError as error:
                self.error = str(error)

    def receive(self, token: int, at: int) -> list[int]:
        """The token that was in flight at this place is known; those that follow from it."""
        self.ids[at] = token
        if self.matching is None:
            return [token]
        tokens = self.matching.take(token, alone=self.sampling.logprobs is not None)
        self.ids += tokens[1:]
        self.error = self.matching.error
        return tokens

    @property
    def alternatives(self) -> int:
        return self.sampling.logprobs or 0


@dataclass(frozen=True, slots=True)
class Flat:
    """An iteration of `N` positions on one axis."""

    tokens: Sequence[int]  # [N]
    positions: Counts  # [N]
    ends: Sequence[int]  # where each step's tokens end
    spans: Sequence[Span]
    attend: Attend | None = None  # None: the default of the device


@dataclass(frozen=True, slots=True)
class Launched:
    """The results of an iteration that are read back, and their meaning."""

    rows: Sequence[KnownSequence]
    steps: Sequence[Step]
    positions: int  # computed, padding included
    drawing: Sequence[int]  # rows for which a token is drawn
    drawn: Tensor | None  # these tokens, on the device
    prompts: Sequence[Targets]  # prompt tokens that are scored
    scored: Sequence[int]  # of the drawing rows, those whose tokens are scored
    numbers: ReadBack  # drawn tokens, scores of prompts, scores of drawn tokens, if any
    start_s: float

    def expect(self) -> None:
        """The drawn tokens are in flight from now on."""
        for j, i in enumerate(self.drawing):
            self.rows[i].ids.append(-1 - j)

    def read(self, after_s: float) -> Outcome:
        """Waits for it. The drawn tokens are known from then on. `after_s`: when the iteration
        before was read; what this one takes begins no earlier."""
        arrays = self.numbers.arrays()
        tokens: list[list[int]] = [[] for _ in self.rows]
        if self.drawing:
            for i, token in zip(self.drawing, arrays.pop(0).tolist(), strict=True):
                # a token is drawn where all known ones are computed
                at = self.steps[i].start + self.steps[i].num_tokens
                tokens[i] = self.rows[i].receive(token, at)
        new = [Targets(i, 0, 0, tokens[i], self.rows[i].alternatives) for i in self.scored]
        of_prompts = zip(self.prompts, logprobs_by_row(self.prompts, arrays[:3]), strict=True)
        of_tokens = zip(self.scored, logprobs_by_row(new, arrays[-3:]), strict=True)
        return Outcome(
            tokens,
            self.positions,
            time.perf_counter() - max(self.start_s, after_s),
            dict(of_tokens),
            {targets.row: (targets.first, words) for targets, words in of_prompts},
            {i: row.error for i, row in enumerate(self.rows) if row.error is not None},
        )


class Started:
    """An iteration that was launched (on a CPU: computed). A `seams.Pending`."""

    def __init__(
        self, launched: Launched, device: torch.device, before: Started | None = None
    ) -> None:
        """`before`: the iteration that was launched before this one."""
        self.device = device
        self._launched = launched
        self._before = before
        self._outcome: Outcome | None = None
        self._after_s = self._read_s = 0.0

    @property
    def in_flight(self) -> Tensor | None:
        """The drawn tokens that are not read yet."""
        return self._launched.drawn if self._outcome is None else None

    def read_before(self) -> None:
        """Reads the iteration before this one. Raises DeviceLostError."""
        if self._before is not None:
            self._before.result()
            self._after_s = self._before._read_s
            self._before = None

    @with_our_errors
    def result(self) -> Outcome:
        """Raises DeviceLostError."""
        if self._outcome is None:
            self.read_before()
            self._outcome = self._launched.read(self._after_s)
            self._read_s = time.perf_counter()
        return self._outcome
