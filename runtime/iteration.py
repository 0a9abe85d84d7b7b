"""An iteration of the local model: its axis of tokens, and its results, which may be read late.

A drawn token is in flight until its iteration is read: it exists on the device only, and its place
among the known ids holds a negative number, -1 - j for token j of that iteration's draws. So the
next iteration can be laid out and launched, and finds the token on the device.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from models.gpt2 import Attend
from requested import Constraint
from runtime.attention import Counts, Spans
from runtime.cache import BlockTable
from runtime.drafting.lookup import MOST_MATCH, Lookup
from runtime.drafting.verification import accepted
from runtime.errors import with_our_errors
from runtime.sampling.scoring import Targets, logprobs_by_row
from runtime.transfer import ReadBack
from seams import Drafts, Opening, Outcome

if TYPE_CHECKING:  # llguidance is needed where a sequence has a constraint
    from runtime.grammar.grammars import Grammars
    from runtime.grammar.matching import Matching, MatchingAhead


class KnownSequence:
    """The model's copy of a sequence; a `runtime.sampling.sampler.Known`."""

    __slots__ = (
        "_lookup",
        "ahead",
        "error",
        "ids",
        "matching",
        "prompt_tokens",
        "sampling",
        "scored",
        "scores",
        "table",
    )

    def __init__(self, opening: Opening, grammars: Grammars | None = None) -> None:
        """Its `error` says why it cannot be continued, through its own fault."""
        self.ids = list(opening.ids)  # extended by drawn tokens; negative: in flight
        self.prompt_tokens = opening.prompt_tokens
        self.sampling = opening.sampling
        self.scored = opening.scored
        self.scores = {self.sampling.logprobs, self.sampling.prompt_logprobs} != {None}
        self.table = BlockTable()
        self._lookup: Lookup | None = None
        self.error: str | None = None
        self.matching: Matching | None = None
        self.ahead: Sequence[MatchingAhead] = ()  # behind each draft, under a constraint
        if opening.sampling.constraint is not None:
            self._constrain(opening.sampling.constraint, grammars)

    def _constrain(self, constraint: Constraint, grammars: Grammars | None) -> None:
        if grammars is None:
            self.error = "this model serves none"
            return
        from runtime.grammar.matching import GrammarError, Matching

        try:
            self.matching = Matching(grammars, constraint, self.ids[self.prompt_tokens :])
        except GrammarError as error:
            self.error = str(error)

    @property
    def draws_each(self) -> bool:
        """Whether a token is drawn even where a constraint forces it: its logprob is wanted."""
        return self.sampling.logprobs is not None

    def receive(
        self, drafts: Sequence[int], drawn: Sequence[int], at: int
    ) -> tuple[list[int], int]:
        """Tokens were drawn at this place, where one may be in flight, and behind each draft.
        Returns what is known from then on, the accepted drafts, a token, and what follows from it,
        and the number of accepted drafts."""
        if self.matching is not None:
            with_mask = list(takewhile(lambda place: not place.failed, self.ahead))
            drafts = drafts[: len(with_mask)]
        tokens = accepted(drafts, drawn)
        count = len(tokens) - 1
        self.ids[at : at + 1] = tokens
        if self.matching is not None:
            self.matching.accept(tokens[:-1])
            forced = self.matching.take(tokens[-1], alone=self.draws_each)[1:]
            tokens += forced
            self.ids += forced
            self.ahead, self.error = (), self.matching.error
        return tokens, count

    def draft(self, most: int) -> Sequence[int]:
        """Up to `most` tokens that are likely to come next; none while the newest is in flight."""
        if self.ids[-1] < 0:
            return ()
        if self._lookup is None:
            self._lookup = Lookup(self.ids, self._expected)
        if self.matching is None:
            return self._lookup.draft(most)
        drafts = self.matching.forced()[:most] if self.draws_each else []
        drafts = drafts or self._lookup.draft(most)
        self.ahead = self.matching.ahead(drafts, alone=self.draws_each)
        return drafts[: len(self.ahead)]

    @property
    def _expected(self) -> Sequence[int]:
        """The answer that the client expects, behind the end of the prompt, where it begins."""
        if not self.sampling.expected_ids:
            return ()
        start = max(0, self.prompt_tokens - MOST_MATCH)
        return [*self.ids[start : self.prompt_tokens], *self.sampling.expected_ids]

    @property
    def alternatives(self) -> int:
        return self.sampling.logprobs or 0


@dataclass(frozen=True, slots=True)
class Flat:
    """An iteration of `N` positions on one axis."""

    tokens: Sequence[int]  # [N]
    positions: Counts  # [N]
    ends: Counts  # where each step's known tokens end; its drafts follow
    spans: Spans
    attend: Attend | None = None  # None: the default of the device


@dataclass(frozen=True, slots=True)
class Launched:
    """The results of an iteration that are read back, and their meaning."""

    rows: Sequence[KnownSequence]
    places: Sequence[int]  # by row: of the token that is drawn after all known ones
    positions: int  # computed, padding included
    drawing: Sequence[int]  # rows for which tokens are drawn
    drafts: Mapping[int, Sequence[int]]  # that were computed, by row: a token is drawn after each
    drawn: Tensor | None  # the drawn tokens, on the device
    prompts: Sequence[Targets]  # prompt tokens that are scored
    scored: Sequence[int]  # of the drawing rows, those whose tokens are scored
    numbers: ReadBack  # drawn tokens, scores of prompts, scores of drawn tokens, if any
    start_s: float

    def expect(self) -> None:
        """The drawn tokens are in flight from now on, except after drafts: how many count is not
        known."""
        rows, drafts, at = self.rows, self.drafts, -1
        for i in self.drawing:
            if drafts and i in drafts:
                at -= len(drafts[i])
            else:
                rows[i].ids.append(at)
            at -= 1

    def read(self, after_s: float) -> Outcome:
        """Waits for it. The drawn tokens are known from then on. `after_s`: when the iteration
        before was read; what this one takes begins no earlier."""
        arrays, rows, places, drafted = self.numbers.arrays(), self.rows, self.places, self.drafts
        drawn: dict[int, list[int]] = {}  # by row, where more or less may be known than was drawn
        kept: dict[int, int] = {}  # accepted drafts, by row
        tokens: list[list[int]] = [[] for _ in rows]
        if self.drawing:
            numbers, at = arrays.pop(0).tolist(), 0
            for i in self.drawing:
                row = rows[i]
                if row.matching is None and i not in drafted:  # nearly always
                    row.ids[places[i]] = number = numbers[at]
                    tokens[i] = [number]
                    at += 1
                    continue
                drafts = drafted.get(i, ())
                end = at + 1 + len(drafts)
                drawn[i] = numbers[at:end]
                tokens[i], kept[i] = row.receive(drafts, drawn[i], places[i])
                at = end
        new = [Targets(i, 0, 0, drawn.get(i, tokens[i]), rows[i].alternatives) for i in self.scored]
        of_prompts = zip(self.prompts, logprobs_by_row(self.prompts, arrays[:3]), strict=True)
        of_tokens = zip(self.scored, logprobs_by_row(new, arrays[-3:]), strict=True)
        return Outcome(
            tokens,
            self.positions,
            time.perf_counter() - max(self.start_s, after_s),
            {i: words[: len(tokens[i])] for i, words in of_tokens},
            {targets.row: (targets.first, words) for targets, words in of_prompts},
            {i: row.error for i, row in enumerate(self.rows) if row.error is not None},
            {i: Drafts(len(d), kept[i]) for i, d in self.drafts.items()},
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
