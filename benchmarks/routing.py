"""What the router's policies make of four servers: time to the first token, and how evenly the
servers are loaded.

    python -m benchmarks.routing

In virtual time: the router's rules and nothing else of it, and servers that compute iterations as
ours do, by a clock instead of a model. One of them is four times slower; or all are alike, and the
requests share ten system prompts, of which each server keeps four, or a single one. Requests arrive
by chance (Poisson), the same for each policy of a round.
"""

from __future__ import annotations

import heapq
import itertools
import json
import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks.harness.report import options, report
from client.experiment import Experiment, Found
from router.rules.dispatch import Dispatcher
from router.rules.fleet import Upstreams
from router.rules.load import RequestWork, StatedUsage
from router.rules.messages.request_body import parse_body, prefixes
from router.rules.policies import POLICIES
from router.rules.request import AttemptEnd, DispatchLimits, RoutedRequest
from router.rules.upstream import Spec

ROWS, KEPT = 16, 4  # of an iteration; system prompts whose keys and values a server keeps
STEP_S, ROW_S, TOKEN_S = 0.015, 0.0005, 0.0001  # of an iteration, a row, a token of a prompt
MEAN_OUTPUT, MOST_OUTPUT = 64, 256
TOKEN = "word "  # of the prompts
SERVERS = 4


class Scenario(NamedTuple):
    """`systems`: system prompts of so many tokens."""

    name: str
    slowest: float
    systems: int
    system_tokens: int
    rate: float  # requests a second
    rank: int  # of the time to the first token that is compared

    def slowness(self) -> list[float]:
        return [1.0] * (SERVERS - 1) + [self.slowest]


SLOW = Scenario("one is four times slower", 4.0, 1, 20, 16.0, 99)
SHARED = Scenario("ten system prompts", 1.0, 10, 1500, 17.0, 50)
ONE = Scenario("one system prompt", 1.0, 1, 1500, 28.0, 50)
POLICY = {SLOW: "least-tokens", SHARED: "prefix", ONE: "prefix"}  # compared with least-work


Arriving = tuple[float, bytes]  # when, and its body


def arrivals(of: Scenario, seconds: float, seed: int) -> list[Arriving]:
    rng = random.Random(seed)
    found, at = [], 0.0
    while (at := at + rng.expovariate(of.rate)) < seconds:
        system = f"{rng.randrange(of.systems)} " + TOKEN * of.system_tokens
        own = f"{rng.random()} " + TOKEN * rng.randint(20, 400 if of.slowest > 1 else 100)
        most = min(MOST_OUTPUT, 1 + int(rng.expovariate(1 / MEAN_OUTPUT)))
        messages = [{"role": "system", "content": system}, {"role": "user", "content": own}]
        asked = {"model": "m", "messages": messages, "max_tokens": most, "stream": True}
        found.append((at, json.dumps(asked).encode()))
    return found


@dataclass(slots=True, eq=False)
class Job:
    """A request at a server. `tell` is called for each token, with their number."""

    system: str
    own_tokens: int
    output: int
    tell: Callable[[int], None]
    generated: int = 0

    @classmethod
    def of(cls, body: bytes, tell: Callable[[int], None]) -> Job:
        asked = json.loads(body)
        system, own = (message["content"] for message in asked["messages"])
        return cls(system, own.count(TOKEN), asked["max_tokens"], tell)

    def usage(self) -> StatedUsage:
        return StatedUsage(self.system.count(TOKEN) + self.own_tokens, self.generated)


class ClockedServer:
    """Iterations of all running requests, with one new prompt at a time."""

    def __init__(self, slowness: float) -> None:
        self._slowness = slowness
        self._kept: OrderedDict[str, None] = OrderedDict()
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []

    @property
    def load(self) -> str:
        return f"waiting={len(self.waiting)} running={len(self.running)}"

    def begin(self) -> float:
        """The duration of the next iteration."""
        cost_s = STEP_S
        if self.waiting and len(self.running) < ROWS:
            job = self.waiting.popleft()
            self.running.append(job)
            new = job.system not in self._kept
            cost_s += TOKEN_S * (job.own_tokens + job.system.count(TOKEN) * new)
            self._kept[job.system] = None
            self._kept.move_to_end(job.system)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return self._slowness * (cost_s + ROW_S * len(self.running))

    def finish(self) -> None:
        for job in self.running:
            job.generated += 1
            job.tell(job.generated)
        self.running = [job for job in self.running if job.generated < job.output]


class Outcome(NamedTuple):
    """Of a turn: seconds to each first token, and generated tokens by server."""

    ttft_s: list[float]
    tokens: Counter[str]

    def quantile_ms(self, rank: float) -> float:
        return 1000 * float(np.quantile(self.ttft_s, rank))

    def most_to_mean(self) -> float:
        return max(self.tokens.values()) * SERVERS / self.tokens.total()


class VirtualFleet:
    """Clocked servers behind routers, without sockets; the clock jumps to the next event."""

    def __init__(self, slowness: Sequence[float], policy: str, routers: int = 1) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self.servers = {f"http://s{i}:1": ClockedServer(slow) for i, slow in enumerate(slowness)}
        self._busy: set[str] = set()
        self._bodies: dict[int, bytes] = {}
        self.ttft_s: list[float] = []
        self.tokens: Counter[str] = Counter()
        self.routers = [self._router(policy, seed) for seed in range(routers)]

    def _router(self, policy: str, seed: int) -> Dispatcher:
        fleet = Upstreams()
        for url in self.servers:
            fleet.add(Spec(url, ROWS), "benchmark").probe_succeeded({"m": b"{}"}, 0.01)
        limits, choice = DispatchLimits(max_queue=10**6), POLICIES[policy](random.Random(seed))
        router: Dispatcher
        router = Dispatcher(fleet, choice, limits, lambda r: self._send(router, r))
        return router

    def at(self, when: float, what: Callable[[], object]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def run(self) -> None:
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            what()

    def ask(self, router: Dispatcher, body: bytes) -> None:
        read = parse_body(body)
        work = RequestWork(len(read.prompt), read.max_tokens)
        request = RoutedRequest("m", prefixes=prefixes(b"", read.prompt), work=work)
        self._bodies[id(request)] = body
        router.arrive(request, self.now)
        if request.upstream is not None:
            self._send(router, request)

    def _send(self, router: Dispatcher, request: RoutedRequest) -> None:
        url = request.placed_on().url
        body = self._bodies.pop(id(request))
        job = Job.of(body, lambda _: self._generated(router, request, job))
        self.servers[url].waiting.append(job)
        self.tokens[url] += job.output
        if url not in self._busy:
            self._iterate(url)

    def _iterate(self, url: str) -> None:
        server = self.servers[url]
        self._busy.add(url)
        if server.waiting or server.running:
            self.at(self.now + server.begin(), partial(self._end_iteration, url))
        else:
            self._busy.discard(url)

    def _end_iteration(self, url: str) -> None:
        self.servers[url].finish()
        self._iterate(url)

    def _generated(self, router: Dispatcher, request: RoutedRequest, job: Job) -> None:
        if job.generated == 1:
            self.ttft_s.append(self.now - request.arrived)
            router.began(request, self.now, self.servers[request.placed_on().url].load)
        request.work.proceed(1)
        if job.generated == job.output:
            router.release(request, AttemptEnd.SUCCESS, self.now, usage=job.usage())


def in_virtual_time(of: Scenario, policy: str, asked: Sequence[Arriving]) -> Outcome:
    fleet = VirtualFleet(of.slowness(), policy)
    for at, body in asked:
        fleet.at(at, partial(fleet.ask, fleet.routers[0], body))
    fleet.run()
    return Outcome(fleet.ttft_s, fleet.tokens)


def measured(of: Scenario, seconds: float, rounds: int) -> Found:
    sides = {policy: partial(in_virtual_time, of, policy) for policy in ("least-work", POLICY[of])}
    ranks = sorted((50, 99), key=lambda rank: rank != of.rank)  # the first is compared
    metrics: dict[str, Callable[[Outcome], float]] = {
        f"p{rank}_ttft_ms": partial(Outcome.quantile_ms, rank=rank / 100) for rank in ranks
    }
    metrics["most_to_mean_load"] = Outcome.most_to_mean
    work = partial(arrivals, of, seconds)
    return Experiment(sides, metrics, "least-work", work, {"servers": of.name}).run(rounds)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="of a turn (default: 60)")
    args = parser.parse_args()
    found = [measured(of, args.seconds, args.rounds) for of in POLICY]
    report(found, f"Virtual time, {args.seconds:g} s a turn", args.out, "routing")


if __name__ == "__main__":
    main()
