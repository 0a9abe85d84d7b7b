"""The KV memory of a padded batch, whose cost belongs to the layout: a rectangle opens as a whole,
and every row has blocks for as many columns as the longest prompt and the longest answer take
together. One rectangle lives at a time, so its blocks are consecutive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from memory import BaseLedger
from seams import Advance, Request, Trial


class RectangleLedger(BaseLedger):
    def __init__(self, budget: int, block_tokens: int = 1) -> None:
        super().__init__(budget, block_tokens)
        self._rows: dict[int, range] = {}

    @property
    def used(self) -> int:
        return sum(map(len, self._rows.values()))

    def freed(self, requests: Iterable[Request]) -> int:
        return sum(len(self._rows[request.id]) for request in requests)

    def trial(self, releasing: Iterable[Request] = ()) -> RectangleTrial:
        return RectangleTrial(self.budget, self.block_tokens, self.used - self.freed(releasing))

    def open(self, requests: Sequence[Request]) -> Mapping[int, int]:
        """As `BaseLedger.open`; the requests are the rows of one rectangle."""
        trial = self.trial()
        for request in requests:
            trial.take(Advance(request, 0))
        width = trial.row_blocks
        for i, request in enumerate(requests):
            self._rows[request.id] = self._news[request.id] = range(i * width, (i + 1) * width)
        return {}

    def release(self, request: Request) -> None:
        del self._rows[request.id]
        self._news.pop(request.id, None)


class RectangleTrial(Trial):
    """Of a rectangle that is about to open. There is no memory beside another one."""

    def __init__(self, budget: int, block_tokens: int, used: int) -> None:
        self.free = 0 if used else budget
        self._block_tokens = block_tokens
        self._rows = self._known = self._further = 0

    @property
    def row_blocks(self) -> int:
        return -(-(self._known + self._further) // self._block_tokens)

    def cost(self, step: Advance) -> int:
        """Blocks by which the rectangle grows: by a row, and by what makes every row longer."""
        known, further = self._with(step.request)
        a_row = -(-(known + further) // self._block_tokens)
        return (self._rows + 1) * a_row - self._rows * self.row_blocks

    def insist(self, step: Advance, cost: int) -> None:
        self.free -= cost
        self._known, self._further = self._with(step.request)
        self._rows += 1

    def _with(self, request: Request) -> tuple[int, int]:
        further = request.max_tokens - request.generated
        return max(self._known, request.known), max(self._further, further)
