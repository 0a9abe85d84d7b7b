"""Policies: each chooses one of the free upstreams for a request. Pure.

A policy gets at least one candidate. All candidates are healthy, serve the model and have a free
place; they are in the operator's order.
"""

import random
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from router.rules.upstream import Upstream

# Prefix affinity is ignored if the favoured upstream has this much more work than the least busy
# one (a relative and an absolute slack, as in the cache-aware policy of SGLang's router).
SLACK_RATIO = 1.5
SLACK_REQUESTS = 4
# The least share of a prompt that an upstream must have seen to be favoured.
MIN_MATCH = 0.3
# Remembered blocks of all prompts: about 100 bytes each.
MAX_BLOCKS = 65_536


class RoutingPolicy(Protocol):
    """Chooses among candidates. It may remember earlier choices, in bounded memory."""

    def choose(self, free: Sequence[Upstream], prefix: Sequence[int]) -> Upstream:
        """`prefix`: a hash per block of the prompt; each also covers the blocks before it."""
        ...


def work(upstream: Upstream) -> tuple[int, float]:
    """Fewest connections, then lowest latency. An unmeasured upstream counts as fastest."""
    return upstream.in_flight, upstream.latency_s or 0.0


class LeastWork:
    """Fewest connections, then lowest latency, then first listed."""

    def choose(self, free: Sequence[Upstream], prefix: Sequence[int]) -> Upstream:
        return min(free, key=work)


class RoundRobin:
    """Each upstream in turn: the one that was chosen longest ago."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        self._turn = 0

    def choose(self, free: Sequence[Upstream], prefix: Sequence[int]) -> Upstream:
        chosen = min(free, key=lambda u: self._turns.get(u.url, 0))
        self._turn += 1
        self._turns.pop(chosen.url, None)  # moved to the end: the first key is the oldest
        self._turns[chosen.url] = self._turn
        if len(self._turns) > 4096:  # addresses of pods long gone
            del self._turns[next(iter(self._turns))]
        return chosen


class PowerOfTwo:
    """The less busy of two random upstreams (Mitzenmacher, 2001). Each of several routers sees only
    its own requests; with this policy they do not all choose the same upstream."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, free: Sequence[Upstream], prefix: Sequence[int]) -> Upstream:
        return min(self._rng.sample(free, min(2, len(free))), key=work)


class PrefixAffinity:
    """The upstream that has seen the longest prefix of the prompt, since its KV cache may hold it.
    Least work if there is none, or if it is much busier than the others. Memory is bounded: the
    least recently used blocks are forgotten."""

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


POLICIES: dict[str, Callable[[], RoutingPolicy]] = {
    "least-work": LeastWork,
    "round-robin": RoundRobin,
    "power-of-two": lambda: PowerOfTwo(random.Random()),
    "prefix": PrefixAffinity,
}
