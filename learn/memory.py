"""What the engine asks of a memory beside what lesson 4 is about: the reader's class adds
`blocks_of`, `admission`, `fit`, `open` and `release`, which the product's `Ledger` has, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from seams import Advance, Memory, Request


class PlainMemory(Memory):
    """`free`: the numbers of the blocks that nobody has. `table`: the blocks of each resident, by
    its id, in the order of its positions."""

    growth_tokens: int | None = None  # a request gets all its blocks at admission
    prefix_caching = False

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks, self.block_tokens = num_blocks, block_tokens
        self.free = list(range(num_blocks))
        self.table: dict[int, list[int]] = {}
        self._told = set[int]()  # requests whose blocks the model knows

    @property
    def used(self) -> int:
        return self.num_blocks - len(self.free)

    def state(self) -> tuple[int, int, int]:
        """Blocks that are used, cached, free."""
        return self.used, 0, len(self.free)

    def freed(self, requests: Iterable[Request]) -> int:
        return sum(len(self.table[request.id]) for request in requests)

    def grow(self, steps: Iterable[Advance]) -> Mapping[int, Sequence[int]]:
        """The blocks of newcomers, for the model."""
        new = {id: blocks for id, blocks in self.table.items() if id not in self._told}
        self._told = {*self.table}
        return new

    def shares(self, request: Request) -> bool:
        return False

    def forget(self, request: Request) -> None:
        """Nothing is remembered of it."""
