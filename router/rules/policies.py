"""Policies: each chooses one of the free upstreams for a request. Pure.

A policy gets at least one candidate. All candidates are healthy, serve the model and have a free
place; they are in the operator's order.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from router.rules.request import RoutedRequest
from router.rules.upstream import Upstream

# No server gets a request for its prefix's sake beyond this multiple of the mean load.
BOUND = 1.25
# Requests after which the counts of prefixes are halved, and below which no share is believed.
MOST_COUNTED, LEAST_COUNTED = 4096, 32


class RoutingPolicy(Protocol):
    """Chooses among candidates. It may remember earlier choices, in bounded memory."""

    def choose(self, free: Sequence[Upstream], request: RoutedRequest, now: float) -> Upstream: ...


def work(upstream: Upstream) -> tuple[int, float]:
    """Fewest connections, then lowest latency. An unmeasured upstream counts as fastest."""
    return upstream.in_flight, upstream.latency_s or 0.0


class LeastWork:
    """Fewest connections, then lowest latency, then first listed."""

    def choose(self, free: Sequence[Upstream], request: RoutedRequest, now: float) -> Upstream:
        return min(free, key=work)


class RoundRobin:
    """Each upstream in turn: the one that was chosen longest ago."""

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}
        self._turn = 0

    def choose(self, free: Sequence[Upstream], request: RoutedRequest, now: float) -> Upstream:
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

    def choose(self, free: Sequence[Upstream], request: RoutedRequest, now: float) -> Upstream:
        return min(self._rng.sample(free, min(2, len(free))), key=work)


class LeastTokens:
    """The upstream that would be done with the request first: outstanding work over the rate at
    which it does work. One whose rate is not known counts as an average one. As long as no rate is
    known, the one with less work of two random ones."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, free: Sequence[Upstream], request: RoutedRequest, now: float) -> Upstream:
        rates = known_rates(free, now)
        if rates is None:
            pair = self._rng.sample(free, min(2, len(free)))
            return min(pair, key=lambda u: (u.load.work(now), work(u)))
        own = request.work.total

        def done_s(at: int) -> tuple[float, float]:
            return (free[at].load.work(now) + own) / rates[at], free[at].latency_s or 0.0

        return free[min(range(len(free)), key=done_s)]


def known_rates(free: Sequence[Upstream], now: float) -> list[float] | None:
    """Where one is not known, the mean of the others; None if none is known."""
    rates = [u.load.known_rate(now) for u in free]
    known = [rate for rate in rates if rate]
    mean = sum(known) / len(known) if known else 0.0
    return [rate or mean for rate in rates] if known else None


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
        self._least = LeastTokens(rng)
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
        chosen = owners[0] if len(owners) == 1 else self._least.choose(owners, request, now)
        if len(owners) == len(free):
            return chosen
        rates = known_rates(free, now) or [1.0] * len(free)
        loads = {u: u.load.work(now) / rate for u, rate in zip(free, rates, strict=True)}
        bound = BOUND * (sum(u.load.work(now) for u in free) + request.work.total) / sum(rates)
        accepting = (u for u in [chosen, *order] if loads[u] <= bound)
        return next(accepting, chosen)


class Shares:
    """Which part of the requests had a prefix. Old ones count less; what was seen once is forgotten
    first. The same for every router that has the same requests."""

    def __init__(self) -> None:
        self.total = 0.0
        self._counts: dict[int, float] = {}

    def add(self, prefix: int) -> float:
        """Counts one more request; returns the share."""
        self._counts[prefix] = self._counts.get(prefix, 0) + 1
        if len(self._counts) > MOST_COUNTED or self.total > MOST_COUNTED:
            self._counts = {k: n / 2 for k, n in self._counts.items() if n >= 2}
            self.total /= 2
        return self._counts.get(prefix, 1) / max(self.total, LEAST_COUNTED)


def rendezvous(prefix: int, mark: int) -> int:
    """The rank of an upstream among the owners of a prefix: SplitMix64's mixing of both."""
    mixed = prefix ^ mark
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    return mixed ^ mixed >> 31


POLICIES: dict[str, Callable[[], RoutingPolicy]] = {
    "least-work": LeastWork,
    "least-tokens": lambda: LeastTokens(random.Random()),
    "round-robin": RoundRobin,
    "power-of-two": lambda: PowerOfTwo(random.Random()),
    "prefix": lambda: PrefixAffinity(random.Random()),
}
