"""The model's copy of a sequence: its tokens and blocks, its place in a grammar, and its drafts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from runtime.cache import BlockTable
from runtime.drafting import MOST_MATCH, Lookup
from runtime.grammar.grammars import GrammarError, Grammars
from runtime.grammar.matching import Matching, MatchingAhead
from seams import Opening


class KnownSequence:
    """The model's copy of a sequence; a `runtime.sampling.sampler.Known`."""

    __slots__ = (
        "_lookup", "ahead", "error", "ids", "matching", "prompt_tokens", "sampling", "scored",
        "scores", "table",
    )  # fmt: skip

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
        constraint = opening.sampling.constraint
        if constraint is not None and grammars is None:
            self.error = "this model serves none"
        elif constraint is not None and grammars is not None:
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
        and the number of accepted drafts: the first ones, as far as they equal what was drawn.

        Noise is a function of seed and position, so what is drawn behind them is what would have
        been drawn without any. Leviathan et al., "Fast Inference from Transformers via Speculative
        Decoding" (ICLR '23) accept drafts by chance, and keep the distribution; an exact match
        keeps the very tokens."""
        if self.matching is not None:
            with_mask = list(takewhile(lambda place: not place.failed, self.ahead))
            drafts = drafts[: len(with_mask)]
        count = 0
        while count < len(drafts) and drafts[count] == drawn[count]:
            count += 1
        tokens = list(drawn[: count + 1])
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

    def draws(self, drafts: Sequence[int]) -> list[KnownSequence | Ahead]:
        """The sequence as it is where each of its next tokens is drawn, the drafts before it."""
        return [self, *(Ahead(self, drafts[: j + 1]) for j in range(len(drafts)))]

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


class Ahead:
    """A sequence as if some drafts were known: what is drawn after them counts them, too. A
    `runtime.sampling.sampler.Known`."""

    __slots__ = ("ids", "matching", "prompt_tokens", "sampling")

    def __init__(self, row: KnownSequence, drafts: Sequence[int]) -> None:
        self.ids = [*row.ids, *drafts]
        self.prompt_tokens, self.sampling = row.prompt_tokens, row.sampling
        self.matching = row.ahead[len(drafts) - 1] if row.ahead else None
