"""Which of the free upstreams takes a request: one small class a policy. Pure.

The candidates a policy is shown are healthy, serve the model and have a free place, in the
operator's order; there is at least one.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from router.rules.upstream import Upstream

# Prefix affinity gives way when the favoured upstream carries this much more than the least busy
# one (a relative and an absolute slack, as the cache-aware policy of SGLang's router has them).
SLACK_RATIO = 1.5
SLACK_REQUESTS = 4
# The share of a prompt that must have been seen for it to be worth steering.
MIN_MATCH = 0.3
# Blocks remembered, over all prompts: about 100 bytes each.
MAX_BLOCKS = 65_536


class Policy(Protocol):
    """Chooses among candidates; may keep memory, which must be bounded."""

    def choose(self, free: Sequence[Upstream], prefix: Sequence[int]) -> Upstream:
        """`prefix`: a hash per block of the prompt, each covering the blocks before it as well."""
        ...


def work(upstream: Upstream) -> tuple[int, float]:
    """Fewest connections, then lowest latency; an upstream never measured is worth a try."""
    return upstream.in_flight, upstream.latency_s or 0.0


class LeastWork:
    """Fewest connections, then lowest latency, then first listed."""

    def choose(self, free: Sequence[Upstream], prefix: Sequence[int]) -> Upstream:
        return min(free, key=work)


class RoundRobin:
    """Each in turn: the one that was chosen longest ago."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        self._turn = 0

    def choose(self, free: Sequence[Upstream], prefix: Sequence[int]) -> Upstream:
        chosen = min(free, key=lambda u: self._turns.get(u.url, 0))
        self._turn += 1
        self._turns.pop(chosen.url, None)  # moved to the end: the first key is the stalest
        self._turns[chosen.url] = self._turn
        if len(self._turns) > 4096:  # addresses of pods long gone
            del self._turns[next(iter(self._turns))]
        return chosen


class PowerOfTwo:
    """The less busy of two drawn at random (Mitzenmacher, 2001): with several routers, each of
    which sees only its own requests, they do not all run to the same upstream."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, free: Sequence[Upstream], prefix: Sequence[int]) -> Upstream:
        return min(self._rng.sample(free, min(2, len(free))), key=work)


class PrefixAffinity:
    """The upstream that has seen the longest prefix of the prompt, whose KV cache may hold it;
    least work where none has or where it is much busier than the others. Memory is bounded: the
    blocks least recently used are forgotten."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._seen: OrderedDict[int, str] = OrderedDict()

    def choose(self, free: Sequence[Upstream], prefix: Sequence[int]) -> Upstream:
        least = min(free, key=work)
        chosen = self._favoured(free, prefix) or least
        if chosen.in_flight > SLACK_RATIO * least.in_flight + SLACK_REQUESTS:
            chosen = least
        for block in prefix:
            self._seen[block] = chosen.url
            self._seen.move_to_end(block)
        while len(self._seen) > self._max_blocks:
            self._seen.popitem(last=False)
        return chosen

    def _favoured(self, free: Sequence[Upstream], prefix: Sequence[int]) -> Upstream | None:
        by_url = {u.url: u for u in free}
        for matched in range(len(prefix), 0, -1):
            if matched < MIN_MATCH * len(prefix):
                break
            url = self._seen.get(prefix[matched - 1])
            if url is not None:
                return by_url.get(url)
        return None


POLICIES: dict[str, Callable[[], Policy]] = {
    "least-work": LeastWork,
    "round-robin": RoundRobin,
    "power-of-two": lambda: PowerOfTwo(random.Random()),
    "prefix": PrefixAffinity,
}
