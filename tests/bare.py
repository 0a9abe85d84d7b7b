"""A model driven through its seam alone: sequences and steps, no engine and no policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

from generate.modes import LayOut
from seams import Model, Opening, Outcome, Sampling, Step

GREEDY = Sampling(temperature=0)


@dataclass(slots=True)
class Open:
    """A sequence as an engine keeps it."""

    id: int
    ids: list[int]
    blocks: Sequence[int]  # not yet sent to the model
    computed: int = 0


class Bare:
    """`advance` is an iteration; what it draws is known from then on."""

    def __init__(self, model: Model, lay_out: LayOut) -> None:
        self.model = model
        self.lay_out = lay_out
        self.released: list[int] = []
        self._opened = 0
        self._blocks = 0

    def open(
        self,
        prompts: Sequence[Sequence[int]],
        further: int,
        samplings: Sequence[Sampling] | None = None,
        scored: int = 0,
    ) -> list[Open]:
        """Sequences with blocks for the longest of the prompts and so many further tokens."""
        room = max(map(len, prompts)) + further
        sequences = []
        for prompt in prompts:
            self._opened += 1
            sequences.append(Open(self._opened, list(prompt), self.blocks(room)))
        self.model.open(
            [
                Opening(sequence.id, list(prompt), len(prompt), sampling, scored)
                for sequence, prompt, sampling in zip(
                    sequences, prompts, samplings or [GREEDY] * len(prompts), strict=True
                )
            ]
        )
        return sequences

    def blocks(self, tokens: int) -> Sequence[int]:
        """Blocks that were never given away before."""
        count = -(-tokens // self.model.block_tokens)
        self._blocks += count
        return range(self._blocks - count, self._blocks)

    def advance(
        self,
        sequences: Sequence[Open],
        tokens: Sequence[int | None] | None = None,
        drafts: Sequence[int] | None = None,
    ) -> Outcome:
        """By so many tokens each, or None for all that are known; a token is drawn where they are
        computed then, and 0 keeps the place of a row. `drafts`: behind the tokens of each."""
        steps = []
        each = zip(sequences, tokens or repeat(None), drafts or repeat(0), strict=False)
        for sequence, wanted, guesses in each:
            known = len(sequence.ids)
            count = known - sequence.computed if wanted is None else wanted
            end = sequence.computed + count
            draw = count > 0 and end == known
            steps.append(
                Step(sequence.id, sequence.computed, count, draw, sequence.blocks, drafts=guesses)
            )
            sequence.computed, sequence.blocks = end, ()
        outcome = self.model.start(self.lay_out(steps), self.released).result()
        self.released = []
        for i, (sequence, new) in enumerate(zip(sequences, outcome.tokens, strict=True)):
            sequence.ids += new
            if i in outcome.drafts:
                sequence.computed += outcome.drafts[i].accepted
        return outcome
