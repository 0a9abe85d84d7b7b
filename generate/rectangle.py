"""The KV memory of a padded batch, whose cost belongs to the layout: a rectangle opens as a whole,
and every row has blocks for as many columns as the longest prompt and the longest answer take
together. Only one rectangle exists at a time, so its blocks are consecutive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from engine.blocks import Ledger
from seams import Advance, Request, Trial


class RectangleLedger(Ledger):
    """A rectangle neither grows nor shares, whatever the options are."""

    def __init__(self, num_blocks: int, block_tokens: int = 1, **_: object) -> None:
        super().__init__(num_blocks, block_tokens)

    def shares(self, request: Request) -> bool:
        return False

    def trial(self, releasing: Iterable[Request] = ()) -> RectangleTrial:
        return RectangleTrial(self, releasing)

    def open(self, requests: Sequence[Request]) -> Sequence[int]:
        """As `Ledger.open`; the requests are the rows of one rectangle."""
        trial = self.trial()
        for request in requests:
            trial.take(Advance(request, 0))
        self._free.sort(reverse=True)  # the lowest block is taken first
        for request in requests:
            self._assign(request, trial.row_blocks)
        return [0] * len(requests)


class RectangleTrial(Trial):
    """Of a rectangle that is about to open. There is no memory beside another one."""

    def __init__(self, ledger: Ledger, releasing: Iterable[Request]) -> None:
        self.free = ledger.num_blocks if ledger.used == ledger.freed(releasing) else 0
        self.row_blocks = 0
        self._ledger = ledger
        self._rows = self._known = self._further = 0

    def cost(self, step: Advance) -> int:
        """Blocks by which the rectangle grows: by a row, and by what makes every row longer."""
        row_blocks = self._ledger.blocks_of(sum(self._with(step.request)))
        return (self._rows + 1) * row_blocks - self._rows * self.row_blocks

    def charge(self, step: Advance, cost: int) -> None:
        self.free -= cost
        self._known, self._further = self._with(step.request)
        self.row_blocks = self._ledger.blocks_of(self._known + self._further)
        self._rows += 1

    def _with(self, request: Request) -> tuple[int, int]:
        """The longest prompt and the longest answer, this request's included."""
        further = request.max_tokens - request.generated
        return max(self._known, request.known), max(self._further, further)
