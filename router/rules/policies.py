"""Policies: each chooses one of the free upstreams for a request. Pure.

A policy gets at least one candidate. All candidates are healthy, serve the model and have a free
place; they are in the operator's order.
"""

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

from router.rules.load import capacities
from router.rules.request import RoutedRequest
from router.rules.upstream import Upstream

# No server gets a request for its prefix's sake beyond this multiple of the mean load.
BOUND = 1.25
# Prefixes that are counted, and requests below which no share is believed.
MOST_COUNTED, LEAST_COUNTED = 4096, 16

# Chooses among candidates. It may remember earlier choices, in bounded memory.
RoutingPolicy = Callable[[Sequence[Upstream], RoutedRequest, float], Upstream]


def work(upstream: Upstream) -> tuple[int, float]:
    """Fewest connections, then lowest latency. An unmeasured upstream counts as fastest."""
    return upstream.in_flight, upstream.latency_s or 0.0


def least_work(free: Sequence[Upstream], request: RoutedRequest, now: float) -> Upstream:
    """Fewest connections, then lowest latency, then first listed."""
    return min(free, key=work)


class RoundRobin:
    """Each upstream in turn: the one that was chosen longest ago."""

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, free: Sequence[Upstream], request: RoutedRequest, now: float) -> Upstream:
        chosen = min(free, key=lambda u: u.turn)
        self._turn += 1
        chosen.turn = self._turn
        return chosen


def power_of_two(
    rng: random.Random, free: Sequence[Upstream], request: RoutedRequest, now: float
) -> Upstream:
    """The less busy of two random upstreams (Mitzenmacher, 2001). Each of several routers sees only
    its own requests; with this policy they do not all choose the same upstream."""
    return min(rng.sample(free, min(2, len(free))), key=work)


def least_tokens(
    rng: random.Random, free: Sequence[Upstream], request: RoutedRequest, now: float
) -> Upstream:
    """The upstream whose tokens would be the fastest: with the least work, the request's own
    included, for its capacity. While no capacity is known, the less loaded of two random ones."""
    known = capacities([u.load for u in free], now)
    if known is None:
        pair = rng.sample(free, min(2, len(free)))
        return min(pair, key=lambda u: (u.load.work(now), work(u)))
    own = request.work.total
    loads = [(u.load.work(now) + own) / c for u, c in zip(free, known, strict=True)]
    return free[loads.index(min(loads))]


class PrefixAffinity:
    """Requests whose prompts begin alike go to the same upstreams, since these have computed the
    beginning; without memory of where anything went, so that several routers choose alike.

    Each prefix has owners: the first upstreams in its own order of all (rendezvous hashing, Thaler
    and Ravishankar, 1998), as many as its share of the requests needs (Nasir et al., ICDE '16). One
    that all prompts share has all upstreams as owners, and the next longer prefix chooses among
    them; so a conversation stays where it began. Of several owners the least loaded is chosen, and
    the next in order if that has more than `BOUND` times the mean load (Mirrokni et al., SODA '18).
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._shares = Shares()

    def choose(self, free: Sequence[Upstream], request: RoutedRequest, now: float) -> Upstream:
        owners, order = list(free), list(free)
        self._shares.total += 1
        for prefix in request.prefixes:
            wanted = max(1, math.ceil(self._shares.add(prefix) * len(free)))
            if wanted < len(owners):
                order.sort(key=lambda u: rendezvous(prefix, u.mark), reverse=True)
                owners = [u for u in order if u in owners][:wanted]
            if len(owners) == 1:
                break
        chosen = owners[0]
        if len(owners) > 1:
            chosen = least_tokens(self._rng, owners, request, now)
        if len(owners) == len(free):
            return chosen
        works = [u.load.work(now) for u in free]
        known = capacities([u.load for u in free], now) or [1.0] * len(free)
        bound = BOUND * (sum(works) + request.work.total) / sum(known)
        full = {u for u, w, c in zip(free, works, known, strict=True) if w > bound * c}
        return next((u for u in [chosen, *order] if u not in full), chosen)


class Shares:
    """Which part of the requests has a prefix, since it was first seen. Of too many prefixes, those
    that were seen once are forgotten, and the others' past counts half."""

    def __init__(self) -> None:
        self.total = 0
        self._seen: dict[int, tuple[float, float]] = {}  # requests, and the total before them

    def add(self, prefix: int) -> float:
        """Counts one more request; returns the share."""
        count, before = self._seen.get(prefix, (0.0, self.total - 1.0))
        self._seen[prefix] = count + 1, before
        if len(self._seen) > MOST_COUNTED:
            self._seen = {
                key: (n / 2, (since + self.total) / 2)
                for key, (n, since) in self._seen.items()
                if n >= 2
            }
        return (count + 1) / max(self.total - before, LEAST_COUNTED)


def rendezvous(prefix: int, mark: int) -> int:
    """The rank of an upstream among the owners of a prefix: SplitMix64's mixing of both."""
    mixed = prefix ^ mark
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return mixed ^ mixed >> 31


POLICIES: dict[str, Callable[[random.Random], RoutingPolicy]] = {
    "least-work": lambda rng: least_work,
    "least-tokens": lambda rng: partial(least_tokens, rng),
    "round-robin": lambda rng: RoundRobin().choose,
    "power-of-two": lambda rng: partial(power_of_two, rng),
    "prefix": lambda rng: PrefixAffinity(rng).choose,
}
