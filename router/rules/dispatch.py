"""The router's core: places, queues and verdicts. Pure: no asyncio, no sockets, no clock.

A request's `Ticket` arrives, is placed on an upstream or waits in its model's FIFO queue, and ends
exactly once. Every change of the state (a free place, a probe, time) serves the queues at once.

Invariant between calls: no waiting ticket could be placed now. So a new ticket that can be placed
does not overtake any ticket of its model and class.
"""

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence

from router.rules.breaker import State as BreakerState
from router.rules.fleet import Fleet
from router.rules.policies import Policy
from router.rules.ticket import Limits, Outcome, Refusal, State, Ticket
from router.rules.upstream import half

# One lane per (deferred, model): tickets by sequence number, oldest first.
Lane = dict[int, Ticket]


def _head(lane: Lane) -> Ticket:
    return next(iter(lane.values()))


class Dispatcher:
    """Places tickets. `decided(ticket)` is called when a *waiting* ticket is placed or refused."""

    def __init__(
        self, fleet: Fleet, policy: Policy, limits: Limits, decided: Callable[[Ticket], None]
    ) -> None:
        self.fleet = fleet
        self._policy = policy
        self._limits = limits
        self._decided = decided
        self._lanes: dict[tuple[bool, str], Lane] = {}
        self._stranded: dict[str, float] = {}  # model → since when no upstream is usable
        self._retried: dict[int, Ticket] = {}  # waiting tickets that were tried somewhere
        self._seq = 0

    # --- the life of a ticket ---------------------------------------------------------------

    def arrive(
        self, model: str, now: float, *, deferred: bool = False, prefix: Sequence[int] = ()
    ) -> Ticket:
        """Adds a new request. Its ticket is PLACED, WAITING or REFUSED on return."""
        self.tick(now)
        self._seq += 1
        deadline = now + self._limits.timeout_s
        ticket = Ticket(self._seq, model, now, deadline, deferred, prefix, queued_since=now)
        if self._place(ticket, now):
            return ticket
        if not self.fleet.serving(model) and self.fleet.complete():
            self._refuse(ticket, Refusal.UNKNOWN_MODEL, now)
        elif self._full(model, deferred):
            self._refuse(ticket, Refusal.QUEUE_FULL, now)
        else:
            self._enqueue(ticket, now)
        return ticket

    def began(self, ticket: Ticket, now: float) -> None:
        """The first byte of the answer has arrived."""
        upstream = ticket.placed_on()
        if not ticket.deferred:  # a server may pause those for any time
            upstream.observe_latency(now - ticket.placed_at)
        upstream.breaker.began(ticket.epoch)

    def release(
        self, ticket: Ticket, outcome: Outcome, now: float, pause_s: float | None = None
    ) -> None:
        """The upstream is done with the request: frees its place and serves the queues.

        A request counts as a failure only once: if it fails on a second upstream, the request
        itself may be the cause. `pause_s`: the upstream's Retry-After, if it sent one."""
        upstream = ticket.placed_on()
        ticket.state = State.RELEASED
        upstream.in_flight -= 1
        upstream.deferred -= ticket.deferred
        if outcome is Outcome.SUCCESS:
            upstream.breaker.success(ticket.epoch, now)
        elif outcome is Outcome.UNREACHABLE or (outcome is Outcome.FAILURE and not ticket.suspect):
            upstream.breaker.failure(ticket.epoch, now)
        else:
            upstream.breaker.began(ticket.epoch)  # a trial that proved nothing admits the next one
        ticket.suspect |= outcome is Outcome.FAILURE
        if pause_s is not None:
            upstream.pause(pause_s, now)
        self.tick(now)

    def may_retry(self, ticket: Ticket, now: float) -> bool:
        """Whether a released request may be tried elsewhere. If so, takes one retry from the failed
        upstream's budget."""
        failed = ticket.upstream
        if ticket.state is not State.RELEASED or failed is None or now >= ticket.deadline:
            return False
        if len(ticket.tried) >= self._limits.max_attempts:
            return False
        if not self._has_another(ticket, now):
            return False
        return failed.budget.withdraw(now)

    def again(self, ticket: Ticket, now: float) -> None:
        """Tries a released request on another upstream. It keeps its old place in the queue."""
        if ticket.state is not State.RELEASED:
            raise RuntimeError(f"only a released ticket is retried, this one is {ticket.state}")
        self.tick(now)
        ticket.state, ticket.queued_since = State.WAITING, now
        if not self._place(ticket, now):
            self._enqueue(ticket, now)

    def leave(self, ticket: Ticket, now: float) -> None:
        """The client is gone or has its answer: frees everything that the ticket holds."""
        if ticket.state is State.PLACED:
            self.release(ticket, Outcome.DEPARTED, now)
        elif ticket.state is State.WAITING:
            self._dequeue(ticket)
            ticket.state = State.RELEASED

    # --- time and change --------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Places waiting tickets that can be placed now and refuses those whose time is over. Call
        it when the fleet changed and at `next_tick`."""
        if self._lanes:
            self._expire(now)
            self._serve(now)

    def next_tick(self, now: float) -> float | None:
        """When time alone may change something; None if no ticket waits."""
        if not self._lanes:
            return None
        times = [_head(lane).deadline for lane in self._lanes.values()]
        for since in self._stranded.values():
            times.append(since + self._limits.wait_for_s)
        for (_, model), lane in self._lanes.items():
            if model in self._stranded:
                times.append(_head(lane).arrived + self._limits.wait_for_s)
        for upstream in self.fleet:
            times.append(upstream.paused_until)
            if upstream.breaker.state(now) is BreakerState.OPEN:
                times.append(upstream.breaker.open_until)
        return min((t for t in times if t > now), default=None)

    def waiting(self, *, deferred_only: bool = False) -> dict[str, int]:
        """How many requests wait, by model."""
        counts: dict[str, int] = {}
        for (deferred, model), lane in self._lanes.items():
            if deferred or not deferred_only:
                counts[model] = counts.get(model, 0) + len(lane)
        return counts

    def longest_wait_s(self, model: str, now: float) -> float:
        """How long the head of the model's queue has waited: an estimate for a new request."""
        heads = [_head(lane) for (_, m), lane in self._lanes.items() if m == model]
        return max((now - t.arrived for t in heads), default=0.0)

    # --- internal ---------------------------------------------------------------------------

    def _place(self, ticket: Ticket, now: float) -> bool:
        free = [
            u
            for u in self.fleet.serving(ticket.model)
            if u not in ticket.tried and u.free(now, deferred=ticket.deferred)
        ]
        if not free:
            return False
        upstream = self._policy.choose(free, ticket.prefix)
        upstream.in_flight += 1
        upstream.deferred += ticket.deferred
        if not ticket.tried:
            upstream.budget.sent(now)
        ticket.epoch = upstream.breaker.sent(now)
        ticket.upstream, ticket.state = upstream, State.PLACED
        ticket.tried.append(upstream)
        ticket.placed_at = now
        ticket.queued_s += now - ticket.queued_since
        return True

    def _serve(self, now: float) -> None:
        """Serves immediate tickets before deferred ones, each class by arrival, across models. If a
        ticket cannot be placed, neither can those behind it in its lane, unless it was tried
        before: then it may not use an upstream that they may use."""
        for deferred in (False, True):
            lanes = [(m, lane) for (d, m), lane in self._lanes.items() if d is deferred]
            oldest: list[tuple[int, Ticket, Iterator[Ticket]]] = []
            for _, lane in lanes:
                tickets = iter(lane.values())
                first = next(tickets)
                heapq.heappush(oldest, (first.seq, first, tickets))
            placed = []
            while oldest:
                _, ticket, tickets = heapq.heappop(oldest)
                if self._place(ticket, now):
                    placed.append(ticket)
                elif not ticket.tried:
                    continue
                following = next(tickets, None)
                if following is not None:
                    heapq.heappush(oldest, (following.seq, following, tickets))
            for ticket in placed:
                self._dequeue(ticket)
                self._decided(ticket)

    def _has_another(self, ticket: Ticket, now: float) -> bool:
        """Whether there is a usable upstream that the ticket was not tried on."""
        serving = self.fleet.serving(ticket.model)
        return any(u.usable(now) and u not in ticket.tried for u in serving)

    def _expire(self, now: float) -> None:
        for ticket in list(self._retried.values()):
            # its model is not stranded while an upstream that failed it is usable
            if not self._has_another(ticket, now):
                self._refuse(ticket, Refusal.UNAVAILABLE, now)
        for model in self._models_waiting():
            serving = self.fleet.serving(model)
            if any(u.usable(now) for u in serving):
                self._stranded.pop(model, None)
            else:
                self._stranded.setdefault(model, now)
        for key, lane in list(self._lanes.items()):
            since = self._stranded.get(key[1])
            unknown = not self.fleet.serving(key[1]) and self.fleet.complete()
            for ticket in list(lane.values()):
                if unknown:
                    self._refuse(ticket, Refusal.UNKNOWN_MODEL, now)
                elif now >= ticket.deadline:
                    self._refuse(ticket, Refusal.TIMEOUT, now)
                elif since is not None and now >= (
                    max(since, ticket.arrived) + self._limits.wait_for_s
                ):
                    self._refuse(ticket, Refusal.UNAVAILABLE, now)
                else:
                    break

    def _refuse(self, ticket: Ticket, refusal: Refusal, now: float) -> None:
        ticket.state, ticket.refusal = State.REFUSED, refusal
        ticket.queued_s += now - ticket.queued_since
        if self._dequeue(ticket):
            self._decided(ticket)

    def _enqueue(self, ticket: Ticket, now: float) -> None:
        key = (ticket.deferred, ticket.model)
        lane = self._lanes.setdefault(key, {})
        in_order = not lane or next(reversed(lane)) < ticket.seq
        lane[ticket.seq] = ticket
        if ticket.tried:
            self._retried[ticket.seq] = ticket
        if not in_order:  # a retried request returns to its old place: rare, so sorting is cheap
            self._lanes[key] = dict(sorted(lane.items()))
        self._expire(now)

    def _dequeue(self, ticket: Ticket) -> bool:
        key = (ticket.deferred, ticket.model)
        lane = self._lanes.get(key, {})
        if lane.pop(ticket.seq, None) is None:
            return False
        self._retried.pop(ticket.seq, None)
        if not lane:
            del self._lanes[key]
            if ticket.model not in self._models_waiting():
                self._stranded.pop(ticket.model, None)
        return True

    def _models_waiting(self) -> set[str]:
        return {model for _, model in self._lanes}

    def _full(self, model: str, deferred: bool) -> bool:
        """Whether there is no space for another request; deferred ones have half of the queue."""
        most = self._limits.max_queue
        return self._beside(model, self.waiting()) >= most or (
            deferred and self._beside(model, self.waiting(deferred_only=True)) >= half(most)
        )

    def _beside(self, model: str, counts: Mapping[str, int]) -> int:
        """The number of requests that wait for the model. Before the first probes end, unconfirmed
        names share one limit, so that invented names cannot fill the memory."""
        if self.fleet.serving(model):
            return counts.get(model, 0)
        return sum(n for m, n in counts.items() if not self.fleet.serving(m))
