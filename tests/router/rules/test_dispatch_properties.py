"""For any order of arrivals, ends, failures, departures, probes and time, the dispatcher's books
close. The walk drives it as the data plane does and keeps its own account, of the breakers too."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from router.rules import breaker, budget
from router.rules.breaker import BreakerState
from router.rules.dispatch import Dispatcher
from router.rules.fleet import Upstreams
from router.rules.load import RequestWork, StatedUsage
from router.rules.policies import POLICIES
from router.rules.request import AttemptEnd, DispatchLimits, NoPlace, RequestState, RoutedRequest
from router.rules.upstream import MAX_PAUSE_S, Spec, Upstream

URLS = [f"http://u{i}:1" for i in range(4)]
LIMITS = DispatchLimits(timeout_s=60, wait_for_s=7, max_queue=4, max_attempts=2)
MODELS = ["a", "b"]


@dataclass
class Known:
    """What the walk did to an upstream."""

    models: set[str] = field(default_factory=set)
    probed: bool = False
    ready: bool = False
    timeouts: int = 0
    draining: bool = False
    paused_until: float = 0.0
    latency_s: float | None = None  # a moving average
    sent: list[int] = field(default_factory=list)  # seconds
    retried: list[int] = field(default_factory=list)
    # of its breaker: those sent to it in this state, and when each failed by whom; None: it did not
    state: BreakerState = BreakerState.CLOSED
    open_until: float = 0.0
    on_trial: bool = False
    current: set[int] = field(default_factory=set)
    verdicts: list[tuple[float, str | None]] = field(default_factory=list)
    successes: int = 0

    def turn(self, state: BreakerState) -> None:
        self.state, self.on_trial, self.successes = state, False, 0
        self.current, self.verdicts = set(), []

    def at(self, now: float) -> BreakerState:
        if self.state is BreakerState.OPEN and now >= self.open_until:
            self.turn(BreakerState.HALF_OPEN)
        return self.state

    def judge(self, seq: int, now: float, client: str | None) -> bool:
        """False if another server has to prove that the failure is not the client's."""
        if seq not in self.current:
            return True
        self.verdicts = [one for one in self.verdicts if one[0] > now - breaker.WINDOW_S]
        if client and [who for _, who in self.verdicts].count(client) >= breaker.FROM_ONE_CLIENT:
            return False
        self.verdicts = [*self.verdicts, (now, client)][-breaker.REMEMBERED :]
        self.successes += client is None
        recent, was_closed = [who for _, who in self.verdicts], self.state is BreakerState.CLOSED
        good = recent.count(None)
        opens = not client or bool({*recent} - {None, client})
        if was_closed:
            opens = len(recent) - good >= max(good, breaker.LEAST_FAILURES)
        if client is not None and opens:
            self.turn(BreakerState.OPEN)
            self.open_until = now + breaker.OPEN_S
        elif not was_closed and self.successes >= breaker.CLOSE_AFTER:
            self.turn(BreakerState.CLOSED)
        return opens or was_closed

    def observe(self, seconds: float) -> None:
        old = seconds if self.latency_s is None else self.latency_s
        self.latency_s = 0.8 * old + 0.2 * seconds


def allowed(request: RoutedRequest, upstream: Upstream | None) -> bool:
    return upstream not in request.tried and request.only in (None, upstream)


class Walk:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        often = self.rng.choice([AttemptEnd.UNREACHABLE, AttemptEnd.FAILURE, AttemptEnd.SUCCESS])
        self.outcomes = [*AttemptEnd, self.rng.choice([*AttemptEnd]), *[often] * (seed % 8)]
        self.fleet = Upstreams()
        self.requests: list[RoutedRequest] = []
        self.decisions: Counter[int] = Counter()
        self.answers: Counter[int] = Counter()
        self.known: dict[Upstream, Known] = {}
        self.waited: set[int] = set()
        self.placed_s: dict[int, float] = {}
        self.unserved: dict[str, float] = {}  # models that are waited for, and since when
        self.reached: set[int] = set()
        self.proceeded: set[int] = set()  # some of their work is done
        self.unproven: dict[int, list[Known]] = {}  # of each that has failed
        policy = POLICIES[self.rng.choice([*POLICIES])](random.Random(0))
        self.is_fair = self.rng.random() < 0.5
        self.dispatcher = Dispatcher(self.fleet, policy, LIMITS, self.decided)

    def decided(self, request: RoutedRequest) -> None:
        self.decisions[request.seq] += 1
        self.waited.discard(request.seq)
        if request.state is RequestState.REFUSED:
            self.answers[request.seq] += 1
            if not request.bound:  # one that is bound ends as soon as its servers are lost
                unknown = not self.serving(request.model) and self.complete
                assert unknown is (request.refusal is NoPlace.UNKNOWN_MODEL)
                if request.refusal is NoPlace.UNAVAILABLE:
                    assert self.now >= self.may_wait_until(request)
            assert (request.refusal is NoPlace.TIMEOUT) <= (self.now >= request.deadline)
            return
        self.placed(request)
        overtaken = [
            t
            for t in self.in_state(RequestState.WAITING)
            if request.upstream in self.serving(t.model)
            and allowed(t, request.upstream)
            and self.comes_before(t, request)
        ]
        assert not overtaken

    def comes_before(self, one: RoutedRequest, other: RoutedRequest) -> bool:
        """Whatever users were served."""
        if self.is_fair and one.deferred == other.deferred:
            same = (one.model, one.user) == (other.model, other.user)
            first, second = (one.priority, one.seq), (other.priority, other.seq)
            return first < second if same else one.priority < other.priority
        return (one.deferred, one.seq) < (other.deferred, other.seq)

    def may_wait_until(self, request: RoutedRequest) -> float:
        """For a server that could take it."""
        since = self.unserved.get(request.model, self.now)
        return max(since, request.arrived) + LIMITS.wait_for_s

    def placed(self, request: RoutedRequest) -> None:
        assert request.state is RequestState.PLACED
        assert request.upstream is not None
        self.placed_s[request.seq] = self.now
        self.proceeded.discard(request.seq)
        known = self.known[request.upstream]
        known.on_trial = known.at(self.now) is BreakerState.HALF_OPEN
        known.current.add(request.seq)
        if len(request.tried) == 1:
            known.sent.append(int(self.now))

    def trial_ends(self, request: RoutedRequest) -> None:
        if request.upstream is not None:
            known = self.known[request.upstream]
            known.on_trial &= request.seq not in known.current

    def in_state(self, *states: RequestState) -> list[RoutedRequest]:
        return [t for t in self.requests if t.state in states]

    def on(self, upstream: Upstream) -> list[RoutedRequest]:
        return [t for t in self.in_state(RequestState.PLACED) if t.upstream is upstream]

    def some(self, *states: RequestState) -> list[RoutedRequest]:
        """One of them, if there is any."""
        return self.rng.sample(found := self.in_state(*states), min(1, len(found)))

    @property
    def complete(self) -> bool:
        return all(self.known[u].probed for u in self.fleet) and not self.fleet.unresolved

    def serving(self, model: str) -> list[Upstream]:
        return [u for u in self.fleet if model in self.known[u].models]

    def usable(self, upstream: Upstream) -> bool:
        known = self.known[upstream]
        opened = known.at(self.now) is BreakerState.OPEN
        return known.ready and not known.draining and not opened

    def free(self, upstream: Upstream, deferred: bool) -> bool:
        held, limit = self.on(upstream), upstream.spec.limit
        of_deferred = sum(t.deferred for t in held)
        return (
            self.usable(upstream)
            and self.now >= self.known[upstream].paused_until
            and len(held) < limit
            and not (deferred and of_deferred >= max(1, limit // 2))
            and not self.known[upstream].on_trial
        )

    # --- the world --------------------------------------------------------------------------

    def add(self) -> None:
        url = self.rng.choice(URLS)
        upstream = self.fleet.add(Spec(url, 1 + URLS.index(url)), "admin")
        self.known.setdefault(upstream, Known()).draining = False
        self.dispatcher.tick(self.now)

    def probe(self) -> None:
        for upstream in self.fleet:
            known, end = self.known[upstream], self.rng.choice(["", "", "good", "late", "bad"])
            if end == "good":
                known.models = {model for model in MODELS if self.rng.random() < 0.7}
                upstream.probe_succeeded(dict.fromkeys(known.models, b"{}"), 0.01)
                known.ready, known.timeouts = True, 0
                known.observe(0.01)
            elif end:
                upstream.probe_failed("down", timed_out=end == "late")
                known.timeouts = known.timeouts + 1 if end == "late" else 0
                known.ready &= end == "late" and known.timeouts < 2
            known.probed |= bool(end)
            self.dispatcher.tick(self.now)

    def resolve(self) -> None:
        self.fleet.unresolved = set() if self.fleet.unresolved else {"dns+http://pods:1"}
        self.dispatcher.tick(self.now)

    def drain_or_remove(self) -> None:
        if upstream := self.fleet.get(self.rng.choice(URLS)):
            upstream.draining = self.known[upstream].draining = True
            if self.rng.random() < 0.5:
                self.fleet.remove(upstream.url)
            self.dispatcher.tick(self.now)

    def time_passes(self, seconds: float | None = None) -> None:
        """With a tick now and then while requests wait, as the data plane's timer has it."""
        until = self.now + (seconds or self.rng.choice([0.1, 0.1, 1.0, 1.0, 7.0, 20.0]))
        while self.now < until:
            self.now = min(until, self.now + self.rng.choice([0.1, 1.0, 5.0]))
            self.dispatcher.tick(self.now)

    # --- the clients ------------------------------------------------------------------------

    def arrive(self) -> None:
        model, deferred = self.rng.choice([*MODELS, *MODELS, "unknown"]), self.rng.random() < 0.4
        only = self.fleet.get(self.rng.choice(URLS)) if self.rng.random() < 0.3 else None
        prefixes = [self.rng.randint(0, 5) for _ in range(3)]
        for _ in range(self.rng.choice([1, 1, 3, 6])):
            expected = self.expected(model, deferred, only)
            request = RoutedRequest(
                model,
                deferred,
                prefixes,
                only,
                client=self.rng.choice(["", "a", "a", "b"]),
                repeatable=self.rng.random() < 0.8,
                priority=self.rng.choice([0, 0, 1]) if self.is_fair else 0,
                user=self.rng.choice("abc") if self.is_fair else "",
                work=RequestWork(self.rng.randint(0, 9999), self.rng.choice([None, 0, 1, 10**9])),
            )
            assert self.dispatcher.arrive(request, self.now) is request
            self.requests.append(request)
            assert (request.state, request.refusal) == expected
            if request.state is RequestState.PLACED:
                self.placed(request)
            elif request.state is RequestState.WAITING:
                self.waited.add(request.seq)
            elif not self.decisions[request.seq]:
                self.answers[request.seq] += 1

    def expected(
        self, model: str, deferred: bool, only: Upstream | None
    ) -> tuple[RequestState, NoPlace | None]:
        """Of a request that arrives now."""
        serving = self.serving(model)
        may = [u for u in serving if only in (None, u)]
        if any(self.free(u, deferred) for u in may):
            return RequestState.PLACED, None
        if not serving and self.complete:
            return RequestState.REFUSED, NoPlace.UNKNOWN_MODEL
        beside = [
            t.deferred
            for t in self.in_state(RequestState.WAITING)
            if (t.model == model if serving else not self.serving(t.model))
        ]
        most = LIMITS.max_queue
        if len(beside) >= most or (deferred and sum(beside) >= most // 2):
            return RequestState.REFUSED, NoPlace.QUEUE_FULL
        if only is not None and not any(self.usable(u) for u in may):
            return RequestState.REFUSED, NoPlace.UNAVAILABLE
        return RequestState.WAITING, None

    def events(self) -> None:
        for request in self.some(RequestState.PLACED):
            request.work.proceed(self.rng.choice([1, 5, 10**6]))
            self.proceeded.add(request.seq)

    def first_byte(self) -> None:
        for request in self.some(RequestState.PLACED):
            self.trial_ends(request)
            told = self.rng.choice(["", "waiting=3 running=4 free_blocks=0", "running=x", "\xff"])
            self.dispatcher.began(request, self.now, told)
            self.proceeded.add(request.seq)
            assert request.upstream is not None
            if not request.deferred:  # a server may pause it
                self.known[request.upstream].observe(self.now - self.placed_s[request.seq])

    def upstream_ends(self) -> None:
        for request in self.some(RequestState.PLACED):
            upstream, outcome = request.upstream, self.rng.choice(self.outcomes)
            assert upstream is not None
            known = self.known[upstream]
            pause = self.rng.choice([None, None, None, 3.0, 100.0])
            if pause is not None:
                until = self.now + min(pause, MAX_PAUSE_S)
                known.paused_until = max(known.paused_until, until)
            self.judge(request, known, outcome)
            usage = self.rng.choice([None, StatedUsage(0, 0), StatedUsage(10**9, 3)])
            self.dispatcher.release(request, outcome, self.now, pause, usage)
            with pytest.raises(RuntimeError, match="holds no place"):
                self.dispatcher.release(request, outcome, self.now)
            if outcome is not AttemptEnd.UNREACHABLE:
                self.reached.add(request.seq)
            recent = [s for s in known.sent if s > int(self.now) - budget.WINDOW_S]
            retried = [s for s in known.retried if s > int(self.now) - budget.WINDOW_S]
            others = [u for u in self.serving(request.model) if allowed(request, u)]
            may = (
                (bool(others) if request.seq not in self.reached else any(map(self.usable, others)))
                and len(request.tried) < LIMITS.max_attempts
                and (request.repeatable or request.seq not in self.reached)
                and self.now < request.deadline
                and (
                    request.seq not in self.reached
                    or len(retried)
                    < budget.RATIO * len(recent) + max(budget.FLOOR, 2 * upstream.spec.limit)
                )
            )
            if outcome in (AttemptEnd.SUCCESS, AttemptEnd.DEPARTED) or self.rng.random() < 0.2:
                may = False
            else:
                assert self.dispatcher.may_retry(request, self.now) == may
            if may and request.seq in self.reached:
                known.retried.append(int(self.now))
            elif not may:
                self.answers[request.seq] += 1
                self.requests.remove(request)

    def judge(self, request: RoutedRequest, known: Known, outcome: AttemptEnd) -> None:
        self.trial_ends(request)
        seq, first = request.seq, request.seq not in self.unproven
        if outcome in (AttemptEnd.SUCCESS, AttemptEnd.REFUSED):
            known.judge(seq, self.now, None)
        elif outcome is AttemptEnd.UNREACHABLE:
            known.judge(seq, self.now, "")
        elif outcome is AttemptEnd.FAILURE:
            failed = self.unproven.setdefault(seq, [])
            if not (first and known.judge(seq, self.now, request.client)):
                failed.append(known)
        for other in self.unproven.get(seq, []) if outcome is AttemptEnd.SUCCESS else ():
            other.judge(seq, self.now, "")

    def back_off_ends(self) -> None:
        for request in self.some(RequestState.RELEASED):
            self.decisions[request.seq] = 0
            self.dispatcher.retry(request, self.now)
            if request.state is RequestState.WAITING:
                self.waited.add(request.seq)
            elif request.state is RequestState.PLACED:
                self.placed(request)

    def client_leaves(self) -> None:
        for request in self.some(RequestState.WAITING, RequestState.PLACED, RequestState.RELEASED):
            if request.state is RequestState.PLACED:  # else another may be on trial there
                self.trial_ends(request)
            self.dispatcher.leave(request, self.now)
            self.waited.discard(request.seq)
            self.answers[request.seq] += 1
            self.requests.remove(request)

    # --- what always holds ------------------------------------------------------------------

    def require_account(self) -> None:
        waiting = self.in_state(RequestState.WAITING)
        models = {t.model for t in waiting if not any(map(self.usable, self.serving(t.model)))}
        self.unserved = {model: self.unserved.get(model, self.now) for model in models}
        for upstream, known in self.known.items():
            assert upstream.breaker.state(self.now) is known.at(self.now)
            assert upstream.latency_s == pytest.approx(known.latency_s)
            held, limit = self.on(upstream), upstream.spec.limit
            assert upstream.in_flight == len(held) <= limit
            untouched = [t.work.total for t in held if t.seq not in self.proceeded]
            most = sum(t.work.total for t in held)
            assert sum(untouched) * 0.999 <= upstream.load.outstanding <= most * 1.001
            assert upstream.load.requests == len(held)
            assert upstream.deferred == sum(t.deferred for t in held) <= max(1, limit // 2)
        for request in waiting:
            assert self.now < min(request.deadline, self.may_wait_until(request))
            may = [u for u in self.serving(request.model) if allowed(request, u)]
            assert not any(self.free(u, request.deferred) for u in may)
            waits = may and request.tried and request.seq not in self.reached
            waits = waits and self.now < request.queued_since + LIMITS.wait_for_s
            assert any(map(self.usable, may)) or not request.bound or waits
        assert self.waited == {t.seq for t in waiting}, "whoever stopped waiting was told"
        assert max([*self.answers.values(), *self.decisions.values()], default=0) <= 1
        assert self.dispatcher.waiting() == Counter(t.model for t in waiting)
        for model in MODELS:
            waits_s = [self.now - t.arrived for t in waiting if t.model == model]
            assert self.dispatcher.longest_wait_s(model, self.now) == max(waits_s, default=0.0)

    def go(self, steps: int) -> None:
        rare = [self.add, self.probe, self.resolve, self.drain_or_remove, self.client_leaves]
        often: list[Callable[[], None]] = [
            self.arrive,
            self.upstream_ends,
            self.back_off_ends,
            self.time_passes,
        ]
        for _ in range(steps):
            self.rng.choice([*rare, self.first_byte, self.events, *often, *often, *often])()
            self.require_account()
        for request in self.in_state(RequestState.RELEASED):
            self.requests.remove(request)
        # While the placed ones run on, time alone must end every wait.
        self.time_passes(LIMITS.timeout_s + 1)
        assert not self.in_state(RequestState.WAITING), "lost in the queue"
        for request in self.in_state(RequestState.PLACED):
            self.dispatcher.release(request, AttemptEnd.SUCCESS, self.now)
            self.answers[request.seq] += 1
            self.requests.remove(request)
        assert all(u.in_flight == 0 for u in self.known)
        assert not self.dispatcher.waiting()
        assert all(self.answers[t.seq] == 1 for t in self.requests), "never answered"


@pytest.mark.parametrize("seeds", [range(400), pytest.param(range(3000), marks=pytest.mark.long)])
def test_the_books_close_whatever_happens(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FLOOR": 1, "RATIO": 0.5, "WINDOW_S": 2}.items():  # it is often spent
        monkeypatch.setattr(budget, name, value)
    for name, value in {"LEAST_FAILURES": 2, "FROM_ONE_CLIENT": 1, "WINDOW_S": 20}.items():
        monkeypatch.setattr(breaker, name, value)
    monkeypatch.setattr(breaker, "REMEMBERED", 4)
    for seed in seeds:
        Walk(seed).go(200)
