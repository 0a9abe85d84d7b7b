"""KV memory for a policy that may take the blocks of some residents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seams import Memory, Request, Trial


class LentMemory(Memory):
    """What the residents `lent` hold counts as available."""

    def __init__(self, memory: Memory, lent: Sequence[Request]) -> None:
        self.memory = memory
        self.lent = lent
        self.num_blocks = memory.num_blocks

    @property
    def used(self) -> int:
        return self.memory.used - self.memory.freed(self.lent)

    @property
    def cached(self) -> int:
        return self.memory.cached

    def freed(self, requests: Iterable[Request]) -> int:
        return self.memory.freed(requests)

    def hit_tokens(self, request: Request) -> int:
        return self.memory.hit_tokens(request)

    def trial(self, releasing: Iterable[Request] = ()) -> Trial:
        return self.memory.trial([*self.lent, *releasing])
