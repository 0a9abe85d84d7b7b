"""A model that computes hashes: exact, without torch, in a time that it makes up.

Each position of a block holds a hash of all tokens up to it, as keys and values depend on all
tokens before them. The next token is such a hash, too. So a request gets another token as soon as
one of its blocks is given away too early, or a position is computed twice or left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from learn import require
from seams import Opening, Outcome, Step

VOCABULARY = 997
ITERATION_S, POSITION_S = 1e-3, 1e-4  # an iteration takes 1 ms, and 0.1 ms for each position


def tokens_alone(prompt: Sequence[int], count: int) -> list[int]:
    """What a request gets that has the model for itself."""
    state, tokens = 0, list(prompt)
    for position in range(len(prompt) + count - 1):
        state = hash((state, tokens[position]))
        if position >= len(prompt) - 1:
            tokens.append(state % VOCABULARY)
    return tokens[len(prompt) :]


class VirtualClock:
    """Time that passes only where somebody says so."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wait_until(self, moment_s: float) -> None:
        self.now_s = moment_s


@dataclass(frozen=True, slots=True)
class Computed:
    """A `seams.Pending` whose tokens are known, and whose time passes when they are asked for."""

    outcome: Outcome
    clock: VirtualClock

    def result(self) -> Outcome:
        self.clock.now_s += self.outcome.duration_s
        return self.outcome


class HashModel:
    """A `seams.Model`. `rectangle`: every row of an iteration has to be equally wide."""

    lost: str | None = None
    context = 1024  # tokens of the longest sequence

    def __init__(self, num_blocks: int, block_tokens: int, *, rectangle: bool) -> None:
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        self.clock = VirtualClock()
        self.owners: list[list[int | None]] = []  # of every block, iteration by iteration
        self._rectangle = rectangle
        self._owner: list[int | None] = [None] * num_blocks
        self._ids: dict[int, list[int]] = {}
        self._blocks: dict[int, list[int]] = {}
        self._held: dict[int, int] = {}  # place in the memory -> hash of the tokens up to it

    def open(self, new: Sequence[Opening]) -> None:
        for opening in new:
            self._ids[opening.id], self._blocks[opening.id] = list(opening.ids), []

    def start(self, steps: Sequence[Step], released: Sequence[int]) -> Computed:
        for id in released:
            for block in self._blocks.pop(id):
                self._owner[block] = None
        widths = [step.padding + step.num_tokens for step in steps]
        equal = not self._rectangle or len({*widths}) == 1
        require(equal, f"the rows are {widths} positions wide; those of a rectangle are equal")
        for step in steps:
            self._take_blocks(step)
        self.owners.append(list(self._owner))
        tokens = [self._advance(step) for step in steps]
        duration_s = ITERATION_S + POSITION_S * sum(widths)
        return Computed(Outcome(tokens, sum(widths), duration_s), self.clock)

    def _take_blocks(self, step: Step) -> None:
        for block in step.blocks:
            owner = self._owner[block]
            require(owner is None, f"request {step.id} is given block {block} of request {owner}")
            self._owner[block] = step.id
            self._blocks[step.id].append(block)
        room, end = len(self._blocks[step.id]) * self.block_tokens, step.start + step.num_tokens
        require(end <= room, f"request {step.id} has blocks for {room} tokens and needs {end}")

    def _advance(self, step: Step) -> list[int]:
        ids = self._ids[step.id]
        state = self._held[self._place(step.id, step.start - 1)] if step.start else 0
        for position in range(step.start, step.start + step.num_tokens):
            state = hash((state, ids[position]))
            self._held[self._place(step.id, position)] = state
        if not step.draw:
            return []
        ids.append(state % VOCABULARY)
        return ids[-1:]

    def _place(self, id: int, position: int) -> int:
        block = self._blocks[id][position // self.block_tokens]
        return block * self.block_tokens + position % self.block_tokens
