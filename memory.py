"""The ledger: which sequence holds which blocks of KV memory. No torch, one for every model.

A block holds the keys and values of `block_tokens` positions. The ledger lives in the engine's
process and alone gives blocks out; a model receives their numbers. So a shortage is found while an
iteration is planned, never in a model.

A block is *used* while a sequence refers to it, *cached* while none does but its tokens may be
wanted again, and free otherwise: used + cached + free = budget. Cached blocks are as good as free
ones; the least recently used one is overwritten first. With prefix caching, a full block is found
again by a digest of its tokens and of all before them (Kwon et al., "Efficient Memory Management
for Large Language Model Serving with PagedAttention", SOSP '23, section 4.3).
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from seams import Advance, Request


class Sharer(Request, Protocol):
    """A request whose blocks may be shared: equal tokens are found by reading them."""

    @property
    def ids(self) -> Sequence[int]: ...

    @property
    def hit_limit(self) -> int: ...  # tokens that a prefix hit may cover at most


@dataclass(slots=True)
class _Table:
    """The blocks of a sequence, in the order of its positions."""

    blocks: list[int]
    shareable: int = 0  # of them, the full ones that others may find


class Ledger:
    """KV memory of sequences that are stored one by one.

    `budget`: blocks. `growth_tokens`: None reserves at admission all that a request may come to
    hold; a number admits it with room for so many further tokens, and as many again whenever they
    are used up.
    """

    def __init__(
        self,
        budget: int,
        block_tokens: int = 1,
        *,
        growth_tokens: int | None = None,
        prefix_caching: bool = False,
    ) -> None:
        self.budget = budget
        self.block_tokens = block_tokens
        self.growth_tokens = growth_tokens
        self.prefix_caching = prefix_caching
        self._tables: dict[int, _Table] = {}
        self._free = list(range(budget - 1, -1, -1))
        self._sharers: dict[int, int] = {}  # used block -> sequences that refer to it
        self._cached: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self._found: dict[bytes, int] = {}  # digest -> the block with these tokens
        self._digest: dict[int, bytes] = {}  # the same, the other way round
        self._digests: dict[int, list[bytes]] = {}  # request -> digests of its full blocks
        self._news: dict[int, Sequence[int]] = {}  # blocks that the model has not been told of

    # --- what policies ask ------------------------------------------------------------------

    @property
    def used(self) -> int:
        return len(self._sharers)

    @property
    def cached(self) -> int:
        return len(self._cached)

    def fit(self, requests: Iterable[Request], releasing: Iterable[Request] = ()) -> int:
        """How many of `requests`, in this order, can be admitted together once `releasing` have
        given up their blocks."""
        return _fit(self.trial(releasing), requests)

    def freed(self, requests: Iterable[Request]) -> int:
        """Blocks that become available if these give up theirs; shared ones stay in use."""
        if self.prefix_caching:
            return len(self.only_of(requests))
        return sum(len(self._tables[request.id].blocks) for request in requests)

    def trial(self, releasing: Iterable[Request] = ()) -> Trial:
        return Trial(self, releasing)

    # --- what the engine does ---------------------------------------------------------------

    def news(self) -> Mapping[int, Sequence[int]]:
        """By sequence, the blocks that it was given since the last call."""
        news, self._news = self._news, {}
        return news

    def open(self, requests: Sequence[Request]) -> Mapping[int, int]:
        """Gives blocks to requests that are admitted together. Returns by id the tokens that a
        prefix hit covers, where it covers any. The plan was checked: there are enough."""
        found = [self.hits(request) for request in requests]
        for hits in found:  # all of them first, so that none is overwritten for another request
            for block in hits:
                self._refer(block)
        hit_tokens = {}
        for request, hits in zip(requests, found, strict=True):
            count = self._blocks(self.room_at_admission(request)) - len(hits)
            blocks = [*hits, *self._take(count)]
            self._tables[request.id] = _Table(blocks, len(hits))
            self._news[request.id] = tuple(blocks)
            if hits:
                hit_tokens[request.id] = len(hits) * self.block_tokens
        return hit_tokens

    def grow(self, steps: Iterable[Advance]) -> None:
        """Gives residents room for what they compute next, where they have none."""
        for step in steps:
            table = self._tables[step.request.id]
            if more := self.growth(step, table):
                taken = self._take(more)
                table.blocks += taken
                self._news[step.request.id] = (*self._news.get(step.request.id, ()), *taken)

    def share(self, request: Request, computed: int) -> None:
        """After an iteration that succeeded: full blocks of so many tokens may be shared."""
        table = self._tables[request.id]
        full = computed // self.block_tokens
        if full > table.shareable:
            digests = self._digests_of(request, full)
            for i in range(table.shareable, full):
                if digests[i] not in self._found:
                    self._found[digests[i]] = table.blocks[i]
                    self._digest[table.blocks[i]] = digests[i]
            table.shareable = full

    def release(self, request: Request) -> None:
        """Takes the blocks back; those that others may find stay cached. The end of a sequence
        goes first, since what comes before it is shared more."""
        self._news.pop(request.id, None)
        for block in reversed(self._tables.pop(request.id).blocks):
            self._sharers[block] -= 1
            if self._sharers[block] == 0:
                del self._sharers[block]
                if block in self._digest:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def clear(self) -> None:
        """No sequence is left, and what the cached blocks held is gone."""
        self._free += self._cached
        self._cached.clear()
        self._found.clear()
        self._digest.clear()

    def forget(self, request: Request) -> None:
        """A request that has ended is looked up no more."""
        self._digests.pop(request.id, None)

    # --- what a trial asks ------------------------------------------------------------------

    def only_of(self, requests: Iterable[Request]) -> set[int]:
        """Blocks to which nobody but these refers."""
        references: dict[int, int] = {}
        for request in requests:
            for block in self._tables[request.id].blocks:
                references[block] = references.get(block, 0) + 1
        return {block for block, count in references.items() if count == self._sharers[block]}

    def hits(self, request: Request) -> Sequence[int]:
        """The cached or used blocks that hold the beginning of a request that waits."""
        if not self.prefix_caching:
            return ()
        blocks = []
        limit: int = request.hit_limit // self.block_tokens  # type: ignore[attr-defined]
        for digest in self._digests_of(request, limit)[:limit]:
            block = self._found.get(digest)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def table(self, request: Request) -> _Table | None:
        return self._tables.get(request.id)

    def in_use(self, block: int) -> bool:
        return block in self._sharers

    def admission(self, request: Request) -> int:
        """Blocks of a request that is admitted, shared ones included."""
        return self._blocks(self.room_at_admission(request))

    def room_at_admission(self, request: Request) -> int:
        further = request.max_tokens - request.generated
        if self.growth_tokens is not None:
            further = min(further, self.growth_tokens)
        return request.known + further

    def growth(self, step: Advance, table: _Table) -> int:
        """Blocks that a resident takes for this step beyond those it has."""
        request, room = step.request, len(table.blocks) * self.block_tokens
        wanted = request.computed + step.tokens
        if wanted <= room:
            return 0
        most = request.known + request.max_tokens - request.generated
        wanted = min(most, max(room + (self.growth_tokens or 0), wanted))
        return self._blocks(wanted) - len(table.blocks)

    # --- blocks -----------------------------------------------------------------------------

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def _take(self, count: int) -> list[int]:
        while len(self._free) < count:
            block, _ = self._cached.popitem(last=False)
            del self._found[self._digest.pop(block)]
            self._free.append(block)
        cut = len(self._free) - count
        taken, self._free[cut:] = self._free[cut:], []
        for block in taken:
            self._sharers[block] = 1
        return taken

    def _refer(self, block: int) -> None:
        self._cached.pop(block, None)
        self._sharers[block] = self._sharers.get(block, 0) + 1

    def _digests_of(self, request: Request, count: int) -> list[bytes]:
        """Of the first `count` full blocks, and of those asked for before."""
        digests = self._digests.setdefault(request.id, [])
        ids: Sequence[int] = request.ids  # type: ignore[attr-defined]
        size = self.block_tokens
        for i in range(len(digests), count):
            before = digests[-1] if digests else b""
            tokens = array("q", ids[i * size : (i + 1) * size]).tobytes()
            digests.append(hashlib.blake2b(before + tokens, digest_size=16).digest())
        return digests


class Trial:
    """The blocks of a plan, counted step by step while nothing is changed yet. `free`: blocks that
    remain; below zero, so many are missing."""

    def __init__(self, ledger: Ledger, releasing: Iterable[Request] = ()) -> None:
        self._ledger = ledger
        releasing = list(releasing)
        self._gone = ledger.only_of(releasing) if ledger.prefix_caching else set[int]()
        self._hit = set[int]()  # unused blocks that an earlier step of the plan refers to
        self.free = ledger.budget - ledger.used + ledger.freed(releasing)

    def cost(self, step: Advance) -> int:
        """Blocks that the step takes beyond those that its request holds or shares."""
        table = self._ledger.table(step.request)
        if table is not None:
            return self._ledger.growth(step, table)
        hits = self._ledger.hits(step.request)
        shared = sum(not self._is_available(block) for block in hits)
        return self._ledger.admission(step.request) - shared

    def take(self, step: Advance) -> bool:
        """Counts the step, if there are blocks for it."""
        cost = self.cost(step)
        if cost > self.free:
            return False
        self.insist(step, cost)
        return True

    def insist(self, step: Advance, cost: int) -> None:
        """Counts a step of this cost, whether or not there are blocks for it."""
        self.free -= cost
        if self._ledger.prefix_caching and self._ledger.table(step.request) is None:
            hits = self._ledger.hits(step.request)
            self._hit.update(block for block in hits if self._is_available(block))

    def _is_available(self, block: int) -> bool:
        unused = block in self._gone or not self._ledger.in_use(block)
        return unused and block not in self._hit


class RectangleLedger:
    """KV memory of padded batches. A rectangle opens as a whole: every row has blocks for as many
    columns as the longest prompt and the longest answer take together. One rectangle lives at a
    time, so its blocks are consecutive. Nothing in it grows or is shared."""

    cached = 0
    growth_tokens = None
    prefix_caching = False

    def __init__(self, budget: int, block_tokens: int = 1) -> None:
        self.budget = budget
        self.block_tokens = block_tokens
        self.used = 0
        self._rows: dict[int, range] = {}
        self._news: dict[int, Sequence[int]] = {}

    def fit(self, requests: Iterable[Request], releasing: Iterable[Request] = ()) -> int:
        """As `Ledger.fit`."""
        return _fit(self.trial(releasing), requests)

    def freed(self, requests: Iterable[Request]) -> int:
        """As `Ledger.freed`."""
        return sum(len(self._rows[request.id]) for request in requests)

    def trial(self, releasing: Iterable[Request] = ()) -> RectangleTrial:
        return RectangleTrial(self.budget, self.block_tokens, self.used - self.freed(releasing))

    def open(self, requests: Sequence[Request]) -> Mapping[int, int]:
        """As `Ledger.open`; the requests are the rows of one rectangle."""
        trial = self.trial()
        for request in requests:
            trial.take(Advance(request, 0))
        width = trial.row_blocks
        for i, request in enumerate(requests):
            self._rows[request.id] = self._news[request.id] = range(i * width, (i + 1) * width)
        self.used += len(requests) * width
        return {}

    def grow(self, steps: Iterable[Advance]) -> None:
        """A row has all its blocks from the start."""

    def share(self, request: Request, computed: int) -> None:
        """A rectangle is not shared."""

    def release(self, request: Request) -> None:
        self.used -= len(self._rows.pop(request.id))
        self._news.pop(request.id, None)

    def clear(self) -> None:
        """Nothing is cached."""

    def forget(self, request: Request) -> None:
        """Nothing is remembered of a request without a row."""

    def news(self) -> Mapping[int, Sequence[int]]:
        """As `Ledger.news`."""
        news, self._news = self._news, {}
        return news


class RectangleTrial:
    """As `Trial`, of a rectangle that is about to open. There is no room beside another one."""

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

    def take(self, step: Advance) -> bool:
        """Counts the step, if there are blocks for it."""
        cost = self.cost(step)
        if cost > self.free:
            return False
        self.insist(step, cost)
        return True

    def insist(self, step: Advance, cost: int) -> None:
        """Counts a step of this cost, whether or not there are blocks for it."""
        self.free -= cost
        self._known, self._further = self._with(step.request)
        self._rows += 1

    def _with(self, request: Request) -> tuple[int, int]:
        further = request.max_tokens - request.generated
        return max(self._known, request.known), max(self._further, further)


def _fit(trial: Trial | RectangleTrial, requests: Iterable[Request]) -> int:
    count = 0
    for request in requests:
        if not trial.take(Advance(request, 0)):
            break
        count += 1
    return count
