"""The ledger: which sequence holds which blocks of KV memory. Torch-free; every model uses it.

A block holds the keys and values of `block_tokens` positions. Only the ledger, in the engine's
process, assigns blocks; a model receives their numbers. So a shortage is found while an iteration
is planned, never in a model.

A block is *used* while a sequence refers to it, *cached* while no sequence does but its tokens may
be needed again, and free otherwise: used + cached + free = num_blocks. Cached blocks are as good as
free ones; the least recently used one is overwritten first. With prefix caching, a full block is
found again by a digest of its tokens and of all before them (Kwon et al., "Efficient Memory
Management for Large Language Model Serving with PagedAttention", SOSP '23, section 4.3)."""

from __future__ import annotations

import hashlib
import itertools
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from seams import Advance, Memory, Request, Trial


class Sharer(Request, Protocol):
    """A request whose blocks may be shared: equal tokens are found by reading them."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def hit_limit(self) -> int: ...  # tokens that a prefix hit may cover at most

    @property
    def salt(self) -> str: ...  # only requests with the same salt share blocks

    @property
    def group(self) -> int: ...  # without prefix caching, only those with the same number; 0: none


@dataclass(slots=True)
class _Table:
    """The blocks of a sequence, in the order of its positions."""

    blocks: list[int]
    shareable: int  # the full ones among them, which others may find


class Ledger(Memory):
    """KV memory of sequences that are stored one by one. Choices of one prompt share its blocks,
    with `prefix_caching` all requests that begin alike do.

    `growth_tokens`: None reserves the most that a request may hold at admission;
    a number admits it with memory for so many further tokens, and adds as many whenever they are
    used up."""

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int = 1,
        *,
        growth_tokens: int | None = None,
        prefix_caching: bool = False,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.growth_tokens = growth_tokens
        self.prefix_caching = prefix_caching
        self._tables: dict[int, _Table] = {}
        self._new_blocks: dict[int, Sequence[int]] = {}  # blocks not yet sent to the model
        self._free = list(range(num_blocks - 1, -1, -1))
        self.sharers: dict[int, int] = {}  # used block -> number of sequences that refer to it
        self._cached: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self._block_of: dict[bytes, int] = {}  # digest -> the block with these tokens
        self._digest: dict[int, bytes] = {}  # the inverse
        self._digests: dict[int, list[bytes]] = {}  # request -> digests of its full blocks

    # --- for policies -----------------------------------------------------------------------

    @property
    def used(self) -> int:
        return len(self.sharers)

    @property
    def cached(self) -> int:
        return len(self._cached)

    def state(self) -> tuple[int, int, int]:
        """Blocks that are used, cached, free."""
        used, cached = len(self.sharers), len(self._cached)
        return used, cached, self.num_blocks - used - cached

    def freed(self, requests: Iterable[Request]) -> int:
        return len(self.only_of(requests))

    def trial(self, releasing: Iterable[Request] = ()) -> Trial:
        return LedgerTrial(self, releasing)

    def hit_tokens(self, request: Request) -> int:
        return len(self.hits(request)) * self.block_tokens

    # --- for the engine ---------------------------------------------------------------------

    def open(self, requests: Sequence[Request]) -> Sequence[int]:
        """Assigns blocks to requests that are admitted together. Returns the tokens of each that a
        prefix hit covers. The plan was checked: there are enough blocks."""
        hits_of = [self.hits(request) for request in requests]
        for hits in hits_of:  # all of them first, so that none is overwritten for another request
            for block in hits:
                self._cached.pop(block, None)
                self.sharers[block] = self.sharers.get(block, 0) + 1
        for request, hits in zip(requests, hits_of, strict=True):
            self._assign(request, self.admission(request) - len(hits), hits)
        return [len(hits) * self.block_tokens for hits in hits_of]

    def grow(self, steps: Iterable[Advance]) -> Mapping[int, Sequence[int]]:
        """Assigns residents the blocks that their next tokens need. Returns all blocks assigned
        since the last call, by sequence."""
        if self.growth_tokens is not None:
            for step in steps:
                if more := self.growth(step):
                    self._assign(step.request, more)
        new_blocks, self._new_blocks = self._new_blocks, {}
        return new_blocks

    def share(self, request: Request, computed: int) -> None:
        """After a successful iteration: full blocks of `computed` tokens may be shared."""
        table = self._tables[request.id]
        full = computed // self.block_tokens
        if full > table.shareable:
            digests = self._digests_of(request, full)
            for i in range(table.shareable, full):
                if digests[i] not in self._block_of:
                    self._block_of[digests[i]] = table.blocks[i]
                    self._digest[table.blocks[i]] = digests[i]
            table.shareable = full

    def release(self, request: Request) -> None:
        """Takes the blocks back."""
        # shareable blocks stay cached; the end of a sequence is overwritten first, since its
        # beginning is shared more
        self._new_blocks.pop(request.id, None)
        for block in reversed(self._tables.pop(request.id).blocks):
            self.sharers[block] -= 1
            if self.sharers[block] == 0:
                del self.sharers[block]
                if block in self._digest:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def clear(self) -> None:
        """Drops the contents of cached blocks. All sequences were released."""
        self._free += self._cached
        self._cached.clear()
        self._block_of.clear()
        self._digest.clear()

    def forget(self, request: Request) -> None:
        """The request has ended; its prefix is no longer looked up."""
        self._digests.pop(request.id, None)

    def held_tokens(self, request: Request) -> int:
        """Tokens for which a resident's blocks have space."""
        return len(self._tables[request.id].blocks) * self.block_tokens

    def shares(self, request: Request) -> bool:
        """Whether its blocks may be shared."""
        return self.prefix_caching or cast(Sharer, request).group > 0

    def shareable(self, request: Request) -> int:
        """Blocks of a resident that others may find."""
        return self._tables[request.id].shareable

    # --- for trials -------------------------------------------------------------------------

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def only_of(self, requests: Iterable[Request]) -> set[int]:
        """Blocks to which only these requests refer."""
        references = Counter(
            block for request in requests for block in self._tables[request.id].blocks
        )
        return {block for block, count in references.items() if count == self.sharers[block]}

    def hits(self, request: Request) -> Sequence[int]:
        """The cached or used blocks that hold the beginning of a waiting request."""
        if not self.shares(request):
            return ()
        limit = cast(Sharer, request).hit_limit // self.block_tokens
        digests = self._digests_of(request, limit)[:limit]
        hit = itertools.takewhile(self._block_of.__contains__, digests)
        return [self._block_of[digest] for digest in hit]

    def admission(self, request: Request) -> int:
        """Blocks of an admitted request, shared ones included."""
        further = request.max_tokens - request.generated
        if self.growth_tokens is not None:
            further = min(further, self.growth_tokens)
        return self.blocks_of(request.known + further)

    def growth(self, step: Advance) -> int:
        """Further blocks that a resident needs for this step."""
        request = step.request
        count = len(self._tables[request.id].blocks)
        held, needed = count * self.block_tokens, request.computed + step.num_tokens
        if needed <= held:
            return 0
        most = request.known + request.max_tokens - request.generated
        needed = min(most, max(held + (self.growth_tokens or 0), needed))
        return self.blocks_of(needed) - count

    # --- blocks -----------------------------------------------------------------------------

    def _assign(self, request: Request, count: int, hits: Sequence[int] = ()) -> None:
        """`count` further blocks for a sequence, which begins with `hits` if it has none yet."""
        while len(self._free) < count:
            block, _ = self._cached.popitem(last=False)
            del self._block_of[self._digest.pop(block)]
            self._free.append(block)
        taken = [self._free.pop() for _ in range(count)]
        self.sharers.update(dict.fromkeys(taken, 1))
        self._tables.setdefault(request.id, _Table([*hits], len(hits))).blocks += taken
        self._new_blocks[request.id] = (*self._new_blocks.get(request.id, hits), *taken)

    def _digests_of(self, request: Request, count: int) -> list[bytes]:
        """Digests of the first `count` full blocks, and of those computed earlier."""
        digests = self._digests.setdefault(request.id, [])
        sharer, size = cast(Sharer, request), self.block_tokens
        # what two sequences must have in common besides their tokens
        origin = sharer.salt if self.prefix_caching else f"{sharer.group} {sharer.salt}"
        for i in range(len(digests), count):
            before = digests[-1] if digests else origin.encode()
            tokens = array("q", sharer.ids[i * size : (i + 1) * size]).tobytes()
            digests.append(hashlib.blake2b(before + tokens, digest_size=16).digest())
        return digests


class LedgerTrial(Trial):
    """A `seams.Trial`; a block that several steps share counts once."""

    def __init__(self, ledger: Ledger, releasing: Iterable[Request] = ()) -> None:
        self._ledger = ledger
        self._gone = ledger.only_of(releasing)
        self._hit = set[int]()  # blocks to which a newcomer of the plan refers
        self.free = ledger.num_blocks - ledger.used + len(self._gone)

    def cost(self, step: Advance) -> int:
        if step.request.resident:
            return self._ledger.growth(step)
        hits = self._ledger.hits(step.request)
        used, gone = self._ledger.sharers, self._gone
        shared = [b for b in hits if b in self._hit or (b in used and b not in gone)]
        return self._ledger.admission(step.request) - len(shared)

    def charge(self, step: Advance, cost: int) -> None:
        self.free -= cost
        if not step.request.resident:
            self._hit.update(self._ledger.hits(step.request))
