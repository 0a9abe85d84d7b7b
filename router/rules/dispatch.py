"""The router's core: places, queues and verdicts. Pure: no asyncio, no sockets, no clock.

A request arrives, is placed on an upstream or waits in its model's queue, and ends exactly once.
Every change of the state (a free place, a probe, time) serves the queues at once.

Invariant between calls: no waiting request could be placed now. So a new request that can be placed
does not overtake any request of its model and class, whatever the order of the queue.
"""

import heapq
import math
from collections import Counter
from collections.abc import Callable

from router.rules.fleet import Upstreams
from router.rules.limits import MinuteLimits
from router.rules.load import Forecast, StatedUsage
from router.rules.policies import RoutingPolicy
from router.rules.queues import Fair, Queue
from router.rules.request import AttemptEnd, DispatchLimits, NoPlace, RequestState, RoutedRequest
from router.rules.upstream import Upstream, half

FIRST_FORECAST = Forecast()
MOST_FORECASTS = 1000


class Dispatcher:
    """Places requests. `decided(request)` is called when a *waiting* one is placed or refused."""

    def __init__(
        self,
        fleet: Upstreams,
        policy: RoutingPolicy,
        limits: DispatchLimits,
        decided: Callable[[RoutedRequest], None],
    ) -> None:
        self.fleet = fleet
        self._policy = policy
        self._limits = limits
        self._decided = decided
        self._fair = Fair()
        self.minutes = MinuteLimits(limits.requests_per_minute, limits.tokens_per_minute)
        self._queues: dict[tuple[bool, str], Queue] = {}  # by (deferred, model)
        self._unserved: dict[str, float] = {}  # model → since when no upstream is usable
        self._bound: dict[int, RoutedRequest] = {}  # waiting requests that may not go everywhere
        self._seq = 0
        self.forecasts: dict[str, Forecast] = {}  # by model

    # --- the life of a request ---------------------------------------------------------------

    def arrive(self, request: RoutedRequest, now: float) -> RoutedRequest:
        """Adds a new request, which is PLACED, WAITING or REFUSED on return."""
        self.tick(now)
        self._seq += 1
        request.seq, request.arrived, request.queued_since = self._seq, now, now
        request.deadline = now + self._limits.timeout_s
        model, deferred = request.model, request.deferred
        self.forecasts.get(model, FIRST_FORECAST).expect(request.work)
        request.charged = request.work.prompt + request.work.output
        request.over_limit = self.minutes.admit(request.client, request.charged, now)
        if request.over_limit is not None:
            request.charged = 0.0
            self._refuse(request, NoPlace.RATE_LIMIT, now)
            return request
        if self._place(request, now):
            return request
        if not self.fleet.serving(model) and self.fleet.complete():
            self._refuse(request, NoPlace.UNKNOWN_MODEL, now)
        elif self._full(model, deferred):
            self._refuse(request, NoPlace.QUEUE_FULL, now)
        else:
            self._enqueue(request, now)
        return request

    def began(self, request: RoutedRequest, now: float, load: str = "") -> None:
        """The first byte of the answer has arrived. `load`: what the upstream told of its own."""
        upstream = request.placed_on()
        upstream.load.tell(load, now)
        request.work.begin(now)
        if not request.deferred:  # a server may pause those for any time
            upstream.observe_latency(now - request.placed_at)
        upstream.breaker.began(request.epoch)
        self.tick(now)  # a half-open breaker admits the next one

    def release(
        self,
        request: RoutedRequest,
        outcome: AttemptEnd,
        now: float,
        pause_s: float | None = None,
        usage: StatedUsage | None = None,
    ) -> None:
        """The upstream is done with the request: frees its place and serves the queues.

        A request counts as a failure only once: if it fails on a second upstream, the request
        itself may be the cause. If another upstream serves it, it is not. `pause_s`: the upstream's
        Retry-After, if it sent one."""
        upstream = request.placed_on()
        request.state = RequestState.RELEASED
        upstream.in_flight -= 1
        upstream.deferred -= request.deferred
        self._account(request, outcome, now, usage)
        if outcome in (AttemptEnd.SUCCESS, AttemptEnd.REFUSED):
            upstream.breaker.success(request.epoch, now)
        elif outcome is AttemptEnd.UNREACHABLE:
            upstream.breaker.failure(request.epoch, now)
        elif outcome is not AttemptEnd.FAILURE:
            upstream.breaker.began(request.epoch)  # a trial that proved nothing admits the next one
        elif request.suspect or not upstream.breaker.failure(request.epoch, now, request.client):
            upstream.breaker.began(request.epoch)
            request.unproven.append((upstream, request.epoch))
        if outcome is AttemptEnd.SUCCESS:
            for failed, epoch in request.unproven:
                failed.breaker.failure(epoch, now)
        request.suspect |= outcome is AttemptEnd.FAILURE
        request.may_have_acted |= outcome is not AttemptEnd.UNREACHABLE
        if pause_s is not None:
            upstream.pause(pause_s, now)
        self.tick(now)

    def may_retry(self, request: RoutedRequest, now: float) -> bool:
        """Whether a released request may be tried elsewhere. If so, takes one retry from the failed
        upstream's budget, unless no server received any of it: a refused connection costs nothing,
        and the request may wait for another upstream like a new one.
        """
        failed = request.upstream
        if request.state is not RequestState.RELEASED or failed is None or now >= request.deadline:
            return False
        if len(request.tried) >= self._limits.max_attempts:
            return False
        if not request.may_have_acted:
            return bool(self._allowed(request))
        again = request.repeatable and self._has_another(request, now)
        return again and failed.budget.withdraw(now, failed.spec.limit)

    def retry(self, request: RoutedRequest, now: float) -> None:
        """Tries a released request on another upstream. It keeps its old place in the queue."""
        if request.state is not RequestState.RELEASED:
            raise RuntimeError(f"only a released request is retried, this one is {request.state}")
        self.tick(now)
        request.state, request.queued_since = RequestState.WAITING, now
        if not self._place(request, now):
            self._enqueue(request, now)

    def leave(self, request: RoutedRequest, now: float) -> None:
        """The client is gone or has its answer: frees everything that the request holds."""
        if request.state is RequestState.PLACED:
            self.release(request, AttemptEnd.DEPARTED, now)
        elif request.state is RequestState.WAITING:
            self._dequeue(request)
            request.state = RequestState.RELEASED
        if request.charged:
            self.minutes.correct(request.client, sum(request.work.spent) - request.charged, now)
            request.charged = 0.0

    # --- time and change --------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Places waiting requests that can be placed now and refuses those whose time is over. Call
        it when the fleet changed, and again and again while requests wait."""
        if self._queues:
            self._expire(now)
            self._serve(now)

    def waiting(self) -> dict[str, int]:
        """How many requests wait, by model."""
        counts: dict[str, int] = {}
        for (_, model), queue in self._queues.items():
            counts[model] = counts.get(model, 0) + len(queue)
        return counts

    def longest_wait_s(self, model: str, now: float) -> float:
        """How long the head of the model's queue has waited: an estimate for a new request."""
        heads = [queue.oldest for (_, m), queue in self._queues.items() if m == model]
        return max((now - t.arrived for t in heads), default=0.0)

    # --- internal ---------------------------------------------------------------------------

    def _place(self, request: RoutedRequest, now: float) -> bool:
        free = [u for u in self._allowed(request) if u.free(now, deferred=request.deferred)]
        if not free:
            return False
        upstream = self._policy(free, request, now)
        request.work.start(upstream.load, now)
        if request.user:
            self._fair.placed(request)
        upstream.in_flight += 1
        upstream.deferred += request.deferred
        if not request.tried:
            upstream.budget.sent(now)
        request.epoch = upstream.breaker.sent(now)
        request.upstream, request.state = upstream, RequestState.PLACED
        request.tried.append(upstream)
        request.placed_at = now
        request.queued_s += now - request.queued_since
        return True

    def _account(
        self, request: RoutedRequest, outcome: AttemptEnd, now: float, usage: StatedUsage | None
    ) -> None:
        """Takes the request's work off its upstream, and learns from it."""
        complete = outcome is AttemptEnd.SUCCESS
        request.work.end(now, usage, complete=complete)
        if request.user:
            self._fair.ended(request)
        if complete and (usage is not None or request.work.generated):
            if len(self.forecasts) > MOST_FORECASTS:
                self.forecasts.clear()
            forecast = self.forecasts.setdefault(request.model, Forecast())
            forecast.learn(request.work, usage or StatedUsage(0, request.work.generated))

    def _serve(self, now: float) -> None:
        """Serves immediate requests before deferred ones, each class in turn, across models. If one
        cannot be placed, neither can those behind it in its queue, unless it is bound: then it may
        not use an upstream that they may use."""
        for deferred in (False, True):
            closed: set[str] = set()  # models whose first request cannot be placed
            queues = [q.in_turn(closed) for (of, _), q in self._queues.items() if of is deferred]
            placed = []
            for _, _, request in heapq.merge(*queues):
                if self._place(request, now):
                    placed.append(request)
                elif not request.bound:
                    closed.add(request.model)
            for request in placed:
                self._dequeue(request)
                self._decided(request)

    def _allowed(self, request: RoutedRequest) -> list[Upstream]:
        """The upstreams that may serve the request and were not tried yet."""
        serving = self.fleet.serving(request.model)
        return [u for u in serving if u not in request.tried and request.only in (None, u)]

    def _has_another(self, request: RoutedRequest, now: float) -> bool:
        """Whether there is a usable upstream that the request was not tried on."""
        return any(u.usable(now) for u in self._allowed(request))

    def _expire(self, now: float) -> None:
        for request in list(self._bound.values()):
            # its model is not unserved while an upstream that it may not use is usable
            if self._has_another(request, now):
                continue
            # one that was tried, and that no upstream received, waits as a new one does
            unreceived = request.tried and not request.may_have_acted and self._allowed(request)
            if not unreceived or now >= request.queued_since + self._limits.wait_for_s:
                self._refuse(request, NoPlace.UNAVAILABLE, now)
        for (_, model), queue in list(self._queues.items()):
            serving, unserved_since = self.fleet.serving(model), math.inf
            if any(u.usable(now) for u in serving):
                self._unserved.pop(model, None)
            else:
                unserved_since = self._unserved.setdefault(model, now)
            unknown = not serving and self.fleet.complete()
            for request in queue:
                if unknown:
                    self._refuse(request, NoPlace.UNKNOWN_MODEL, now)
                elif now >= request.deadline:
                    self._refuse(request, NoPlace.TIMEOUT, now)
                elif now >= max(unserved_since, request.arrived) + self._limits.wait_for_s:
                    self._refuse(request, NoPlace.UNAVAILABLE, now)
                else:
                    break

    def _refuse(self, request: RoutedRequest, refusal: NoPlace, now: float) -> None:
        request.state, request.refusal = RequestState.REFUSED, refusal
        request.queued_s += now - request.queued_since
        if self._dequeue(request):
            self._decided(request)

    def _enqueue(self, request: RoutedRequest, now: float) -> None:
        key = (request.deferred, request.model)
        self._queues.setdefault(key, Queue(self._fair)).add(request)
        if request.bound:
            self._bound[request.seq] = request
        self._expire(now)

    def _dequeue(self, request: RoutedRequest) -> bool:
        key = (request.deferred, request.model)
        queue = self._queues.get(key)
        if queue is None or not queue.remove(request):
            return False
        self._bound.pop(request.seq, None)
        if not queue:
            del self._queues[key]
            if all(model != request.model for _, model in self._queues):
                self._unserved.pop(request.model, None)
        return True

    def _full(self, model: str, deferred: bool) -> bool:
        """Whether there is no space for another request; deferred ones have half of the queue.
        Before the first probes end, unconfirmed names share one limit, so that invented names
        cannot fill the memory."""
        known, most = bool(self.fleet.serving(model)), self._limits.max_queue
        beside = Counter[bool]()  # those that wait, by whether they are deferred
        for (is_deferred, other), queue in self._queues.items():
            if other == model if known else not self.fleet.serving(other):
                beside[is_deferred] += len(queue)
        return beside.total() >= most or (deferred and beside[True] >= half(most))
