"""For any order of arrivals, ends, failures, departures, probes and time, the dispatcher's books
close. The machine drives it as the data plane does and keeps its own account."""

import random
from collections import Counter
from collections.abc import Callable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.rules.budget import FLOOR
from router.rules.dispatch import Dispatcher
from router.rules.fleet import Fleet
from router.rules.policies import LeastWork, Policy, PowerOfTwo, PrefixAffinity, RoundRobin
from router.rules.request import Limits, Outcome, Refusal, RoutedRequest, State
from router.rules.upstream import MAX_PAUSE_S, Spec, Upstream, half

URLS = [f"http://u{i}:1" for i in range(4)]
LIMITS = Limits(timeout_s=60, wait_for_s=7, max_queue=4, max_attempts=3)
MODELS = ["a", "b"]
POLICIES = [LeastWork, RoundRobin, PrefixAffinity, lambda: PowerOfTwo(random.Random(0))]


def allowed(request: RoutedRequest, upstream: Upstream | None) -> bool:
    return upstream not in request.tried and request.only in (None, upstream)


class Router(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.fleet = Fleet()
        self.requests: list[RoutedRequest] = []
        self.decisions: Counter[int] = Counter()
        self.answers: Counter[int] = Counter()
        self.everyone: list[Upstream] = []
        self.waited: set[int] = set()
        self.reached: set[int] = set()

    @initialize(policy=st.sampled_from(POLICIES), size=st.integers(0, 3))
    def start(self, policy: Callable[[], Policy], size: int) -> None:
        self.dispatcher = Dispatcher(self.fleet, policy(), LIMITS, self.decided)
        for url in URLS[:size]:
            self.add(url)
            self.probe_good(url, {"a"})

    def decided(self, request: RoutedRequest) -> None:
        self.decisions[request.seq] += 1
        self.waited.discard(request.seq)
        if request.state is State.REFUSED:
            self.answers[request.seq] += 1
            unknown = not self.fleet.serving(request.model) and self.fleet.complete()
            if not request.bound:  # one that is bound ends as soon as its servers are lost
                assert unknown is (request.refusal is Refusal.UNKNOWN_MODEL)
            assert (request.refusal is Refusal.TIMEOUT) <= (self.now >= request.deadline)
            return
        assert request.state is State.PLACED
        overtaken = [
            t
            for t in self.in_state(State.WAITING)
            if request.upstream in self.fleet.serving(t.model)
            and allowed(t, request.upstream)
            and (t.deferred, t.seq) < (request.deferred, request.seq)
        ]
        assert not overtaken

    def in_state(self, *states: State) -> list[RoutedRequest]:
        return [t for t in self.requests if t.state in states]

    def pick(self, data: st.DataObject, *states: State) -> RoutedRequest:
        return data.draw(st.sampled_from(self.in_state(*states)))

    # --- the world --------------------------------------------------------------------------

    @rule(url=st.sampled_from(URLS))
    def add(self, url: str) -> None:
        upstream = self.fleet.add(Spec(url, 1 + URLS.index(url)), "admin")
        if upstream not in self.everyone:
            self.everyone.append(upstream)
        self.dispatcher.tick(self.now)

    @rule(url=st.sampled_from(URLS), models=st.sets(st.sampled_from(MODELS)))
    def probe_good(self, url: str, models: set[str]) -> None:
        if upstream := self.fleet.get(url):
            upstream.probe_succeeded(dict.fromkeys(models, b"{}"), 0.01)
            self.dispatcher.tick(self.now)

    @rule(url=st.sampled_from(URLS), timed_out=st.booleans())
    def probe_bad(self, url: str, timed_out: bool) -> None:
        if upstream := self.fleet.get(url):
            upstream.probe_failed("down", timed_out=timed_out)
            self.dispatcher.tick(self.now)

    @rule(url=st.sampled_from(URLS), gone=st.booleans())
    def drain_or_remove(self, url: str, gone: bool) -> None:
        if upstream := self.fleet.get(url):
            upstream.draining = True
            if gone:
                self.fleet.remove(url)
            self.dispatcher.tick(self.now)

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        """As the data plane's timer lets it: never past the next tick without a tick."""
        until = self.now + seconds
        while (at := self.dispatcher.next_tick(self.now)) is not None and at <= until:
            self.now = at
            self.dispatcher.tick(self.now)
        self.now = until

    # --- the clients ------------------------------------------------------------------------

    @rule(
        model=st.sampled_from([*MODELS, "unknown"]),
        deferred=st.booleans(),
        prefix=st.lists(st.integers(0, 5), max_size=3),
        bound=st.sampled_from([None, None, *URLS]),
        repeatable=st.booleans(),
        times=st.sampled_from([1, 1, 3, 6]),
    )
    def arrive(
        self,
        model: str,
        deferred: bool,
        prefix: list[int],
        bound: str | None,
        repeatable: bool,
        times: int,
    ) -> None:
        only = self.fleet.get(bound) if bound else None
        for _ in range(times):
            self.dispatcher.tick(self.now)
            expected = self.expected(model, deferred, only)
            request = self.dispatcher.arrive(
                model, self.now, deferred=deferred, prefix=prefix, only=only, repeatable=repeatable
            )
            self.requests.append(request)
            assert (request.state, request.refusal) == expected
            if request.state is State.REFUSED and not self.decisions[request.seq]:
                self.answers[request.seq] += 1
            self.note_waiting(request)

    def expected(
        self, model: str, deferred: bool, only: Upstream | None
    ) -> tuple[State, Refusal | None]:
        """Of a request that arrives now."""
        serving = self.fleet.serving(model)
        may = [u for u in serving if only in (None, u)]
        if any(u.free(self.now, deferred=deferred) for u in may):
            return State.PLACED, None
        if not serving and self.fleet.complete():
            return State.REFUSED, Refusal.UNKNOWN_MODEL
        beside = [
            t.deferred
            for t in self.in_state(State.WAITING)
            if (t.model == model if serving else not self.fleet.serving(t.model))
        ]
        most = LIMITS.max_queue
        if len(beside) >= most or (deferred and sum(beside) >= half(most)):
            return State.REFUSED, Refusal.QUEUE_FULL
        if only is not None and not any(u.usable(self.now) for u in may):
            return State.REFUSED, Refusal.UNAVAILABLE
        return State.WAITING, None

    def note_waiting(self, request: RoutedRequest) -> None:
        if request.state is State.WAITING:
            self.waited.add(request.seq)

    @precondition(lambda self: self.in_state(State.PLACED))
    @rule(data=st.data())
    def first_byte(self, data: st.DataObject) -> None:
        self.dispatcher.began(self.pick(data, State.PLACED), self.now)

    @precondition(lambda self: self.in_state(State.PLACED))
    @rule(
        data=st.data(),
        outcome=st.sampled_from(Outcome),
        pause=st.none() | st.floats(0, 100),
        retry=st.booleans(),
    )
    def upstream_ends(
        self, data: st.DataObject, outcome: Outcome, pause: float | None, retry: bool
    ) -> None:
        request = self.pick(data, State.PLACED)
        upstream = request.upstream
        self.dispatcher.release(request, outcome, self.now, pause)
        if outcome is not Outcome.UNREACHABLE:
            self.reached.add(request.seq)
        assert upstream is not None
        if pause is not None:
            assert upstream.paused_until >= self.now + min(pause, MAX_PAUSE_S)
        backing_off = (
            retry
            and outcome not in (Outcome.SUCCESS, Outcome.DEPARTED)
            and self.dispatcher.may_retry(request, self.now)
        )
        others = [u for u in self.fleet.serving(request.model) if u.usable(self.now)]
        may = (
            any(allowed(request, u) for u in others)
            and len(request.tried) < LIMITS.max_attempts
            and (request.repeatable or request.seq not in self.reached)
            and self.now < request.deadline
        )
        assert not backing_off or may
        if retry and outcome in (Outcome.FAILURE, Outcome.BUSY) and may:
            assert backing_off or upstream.budget._retries >= FLOOR
        if not backing_off:
            self.answers[request.seq] += 1
            self.requests.remove(request)

    @precondition(lambda self: self.in_state(State.RELEASED))
    @rule(data=st.data())
    def back_off_ends(self, data: st.DataObject) -> None:
        request = self.pick(data, State.RELEASED)
        self.decisions[request.seq] = 0
        self.dispatcher.retry(request, self.now)
        self.note_waiting(request)

    @rule(data=st.data())
    @precondition(lambda self: self.in_state(State.WAITING, State.PLACED, State.RELEASED))
    def client_leaves(self, data: st.DataObject) -> None:
        request = self.pick(data, State.WAITING, State.PLACED, State.RELEASED)
        self.dispatcher.leave(request, self.now)
        self.waited.discard(request.seq)
        self.answers[request.seq] += 1
        self.requests.remove(request)

    # --- what always holds ------------------------------------------------------------------

    @invariant()
    def the_limit_is_exact_and_no_place_leaks(self) -> None:
        held = Counter(id(t.upstream) for t in self.in_state(State.PLACED))
        for upstream in self.everyone:
            assert upstream.in_flight == held[id(upstream)]
            assert upstream.in_flight <= upstream.spec.limit
            deferred = [t for t in self.in_state(State.PLACED) if t.deferred]
            assert upstream.deferred == sum(t.upstream is upstream for t in deferred)
            assert upstream.deferred <= half(upstream.spec.limit)

    @invariant()
    def nobody_waits_beside_a_free_place(self) -> None:
        for request in self.in_state(State.WAITING):
            for upstream in self.fleet.serving(request.model):
                free = upstream.free(self.now, deferred=request.deferred)
                assert not free or not allowed(request, upstream)

    @invariant()
    def no_request_waits_beyond_its_time(self) -> None:
        assert all(self.now < request.deadline for request in self.in_state(State.WAITING))

    @invariant()
    def no_bound_request_waits_without_a_server_to_try(self) -> None:
        for request in self.in_state(State.WAITING):
            serving = self.fleet.serving(request.model)
            left = [u for u in serving if u.usable(self.now) and allowed(request, u)]
            assert left or not request.bound

    @invariant()
    def whoever_stopped_waiting_was_told(self) -> None:
        assert self.waited == {t.seq for t in self.in_state(State.WAITING)}

    @invariant()
    def nobody_is_answered_twice(self) -> None:
        assert all(n <= 1 for n in self.answers.values())
        assert all(n <= 1 for n in self.decisions.values())

    @invariant()
    def the_queue_is_counted(self) -> None:
        waiting = Counter(t.model for t in self.in_state(State.WAITING))
        counted = self.dispatcher.waiting() if self.requests else {}
        assert counted == dict(waiting)

    def teardown(self) -> None:
        if not hasattr(self, "dispatcher"):
            return
        for request in self.in_state(State.RELEASED):
            self.requests.remove(request)
        # While the placed ones run on, time alone must end every wait.
        self.time_passes(LIMITS.timeout_s + 1)
        assert not self.in_state(State.WAITING), "lost in the queue"
        while running := self.in_state(State.PLACED):
            self.dispatcher.release(running[0], Outcome.SUCCESS, self.now)
            self.answers[running[0].seq] += 1
            self.requests.remove(running[0])
        assert all(u.in_flight == 0 for u in self.everyone)
        assert self.dispatcher.next_tick(self.now) is None
        assert all(self.answers[t.seq] == 1 for t in self.requests), "never answered"


Router.TestCase.settings = settings(stateful_step_count=50, deadline=None)
TestRouter = Router.TestCase
