"""A manager in virtual time: the driver, the clients, and the books that must close.

Times are multiples of 1/1024 s and the hash model's durations are binary fractions, so sums of
times are exact and may be compared for equality.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hypothesis import strategies as st

from batching import BatchingManager
from engine.inference import DrainingError, Inference, new_group
from engine.iteration import Iteration, Wait
from engine.speculation import Speculation
from generate.modes import LayOut, RectangleLedger
from scheduling.registry import PAUSING
from seams import (
    Constraint,
    IterationRecord,
    Observer,
    Outcome,
    Plan,
    Policy,
    Recorder,
    Request,
    RequestRecord,
    Sampling,
    Served,
    View,
)
from tests.batching.modes import Mode
from tests.scheduling.shown import NO_SIGNALS
from tests.scheduling.step_times import FixedStepTime
from tests.support.hash_model import HashModel, virtual_duration_s
from tests.support.hashed import reference, reference_logprob

TICK_S = 2**-10
MAX_STEPS = 20_000  # far more than any test's work takes


@dataclass(slots=True)
class Records:
    """A Recorder that keeps everything."""

    iterations: list[IterationRecord] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    busy_periods: list[tuple[float, float]] = field(default_factory=list)

    def iteration(self, record: IterationRecord) -> None:
        self.iterations.append(record)

    def request(self, record: RequestRecord) -> None:
        self.requests.append(record)

    def busy(self, start_s: float, end_s: float) -> None:
        self.busy_periods.append((start_s, end_s))


class Wrapped:
    """Any policy, as it is. `planned`: the requests that each plan advances."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.answers = policy.answers
        self.planned: list[list[int]] = []

    def plan(self, view: View) -> Plan:
        plan = self.policy.plan(view)
        self.planned.append([step.request.id for step in plan.advance])
        return plan

    def observe(self, rows: Iterable[Served]) -> None:
        if isinstance(self.policy, Observer):
            self.policy.observe(rows)

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return self.policy.retire(resident)


def drive(manager: BatchingManager, lay_out: LayOut, clock: Callable[[], float]) -> None:
    """The loop of a mode with this layout."""
    while not manager.drained:
        wait = manager.step(lay_out, clock)
        if wait is not None:
            manager.sleep(wait, clock)


class World:
    """A model, a policy, a manager and their books, and the time that passes for them."""

    def __init__(
        self,
        mode: Mode,
        *,
        max_wait_s: float = 0.0,
        budget: int = 4096,
        context: int = 128,
        block_tokens: int = 1,
        also: Recorder | None = None,
        speculate: int = 0,
        **limits: Any,
    ) -> None:
        """`also` receives the same records as the books. With `speculate` drafts no step time is
        known, so that they are as many as are free at first. `limits`: of the manager."""
        limits = {"max_batch_size": 8, "max_waiting": 1000, **limits}
        if mode.name.split(",")[0] in PAUSING:
            limits["max_resident"] = 4 * limits["max_batch_size"]
        self.mode = mode
        self.model = HashModel(
            context=context,
            vocab_size=13,
            budget=budget,
            block_tokens=block_tokens,
            duration_s=virtual_duration_s,
        )
        self.policy = Wrapped(mode.policy(max_wait_s))
        self.books = Records()
        self.manager = BatchingManager(
            self.policy,
            [self.books] if also is None else [self.books, also],
            speculation=Speculation(speculate, FixedStepTime(known=False)) if speculate else None,
            **limits,
        )
        self.memory = mode.ledger(self.model.num_blocks, block_tokens)
        self.manager.serve(self.model, self.memory)
        self.submitted: list[Inference] = []
        self.now_s = 0.0

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int,
        seed: int = 0,
        *,
        at_s: float | None = None,
        end_ids: Iterable[int] = (),
        stored: bool = False,
        constraint: Constraint | None = None,
        scored: bool = False,
        **told: Any,
    ) -> Inference:
        """Submits a request; a refused one is not in `submitted`. `scored`: with the logprobs of
        its tokens and of its prompt. `told`: as of `Inference`."""
        scores = 0 if scored else None
        inference = Inference(
            prompt,
            max_tokens,
            Sampling(seed=seed, constraint=constraint, logprobs=scores, prompt_logprobs=scores),
            self.now_s if at_s is None else at_s,
            end_ids=frozenset(end_ids),
            **told,
        )
        (self.manager.enqueue_stored if stored else self.manager.enqueue)(inference)
        self.submitted.append(inference)
        return inference

    def step(self) -> float | None:
        """Begins an iteration, or several, and finishes the oldest. Returns when the next is due,
        None if nothing is until someone arrives; the time of what was executed has passed."""
        manager = self.manager
        begun = manager.begin(self.now_s, self.mode.lay_out)
        while isinstance(begun, Iteration) and len(manager.in_flight) <= manager.lookahead:
            begun = manager.begin(self.now_s, self.mode.lay_out)
        if manager.in_flight:
            flight = manager.in_flight[0]
            landed = flight.outcome()
            if isinstance(landed, Outcome):
                self.now_s = max(self.now_s, flight.start_s) + landed.duration_s
            manager.finish(self.now_s, landed)
            return self.now_s
        assert isinstance(begun, Wait)
        return None if begun.until_s == math.inf else begun.until_s

    def run(self, events: Iterable[tuple[float, Callable[[], object]]] = ()) -> None:
        """Until nothing is left to do. An event that falls into an iteration happens after it, as
        it does for the manager, which reads its mailbox between iterations."""
        numbers = itertools.count()
        heap = [(at_s, next(numbers), happen) for at_s, happen in events]
        heapq.heapify(heap)
        for _ in range(MAX_STEPS):
            while heap and heap[0][0] <= self.now_s:
                heapq.heappop(heap)[2]()
            wake_s = self.step()
            self._check_step()
            if wake_s is None and not heap:
                return
            ahead_s = [at_s for at_s, *_ in heap[:1]] + ([] if wake_s is None else [wake_s])
            self.now_s = max(self.now_s, min(ahead_s))
        raise AssertionError(f"no end after {MAX_STEPS} steps")

    def away(self, reason: str | None) -> None:
        """The model is lost; None: it is back."""
        self.model.lost = reason
        if reason is not None:
            self.model.lose()
        else:
            self.manager.wake()

    def _check_step(self) -> None:
        """Memory belongs to residents, and no request is lost or ends twice."""
        counts = self.manager.counts
        assert 0 <= self.memory.used <= self.memory.num_blocks
        assert (self.memory.used > 0) == (counts["running"] > 0)
        blocks = self.memory.used + self.memory.cached + len(self.memory._free)
        assert blocks == self.memory.num_blocks
        assert self.model.breaches == []
        ended = sum(inference.recorded for inference in self.submitted)
        assert len(self.books.requests) == ended
        assert len(self.submitted) - ended <= counts["waiting"] + counts["running"]


@dataclass(frozen=True, slots=True)
class Client:
    """What a client asks for and when, and when it loses patience."""

    at_s: float
    asks: Mapping[str, Any]  # of `World.submit`
    choices: int = 1  # of which the first one leaves
    patience_s: float | None = None


TOKENS = st.integers(0, 12)
SIZES = {
    "prompt": st.lists(TOKENS, min_size=1, max_size=20),
    "max_tokens": st.integers(1, 24),
    "seed": st.integers(0, 2**64 - 1),
    "end_ids": st.just(frozenset[int]()) | st.frozensets(TOKENS, max_size=2),
    "streaming": st.booleans(),
}


def moments(most: int) -> st.SearchStrategy[float]:
    return st.integers(0, most).map(lambda ticks: ticks * TICK_S)


def workloads(
    choices: int = 1,
    told: st.SearchStrategy[dict[str, Any]] = NO_SIGNALS,
    **asked: st.SearchStrategy[Any],
) -> st.SearchStrategy[list[Client]]:
    """`choices`: the most of a client. `told`: the signals. `asked`: further arguments of
    `World.submit`."""
    clients = st.builds(
        Client,
        at_s=moments(60),
        asks=st.builds(operator.or_, st.fixed_dictionaries({**SIZES, **asked}), told),
        choices=st.just(1) | st.integers(1, choices),
        patience_s=st.none() | st.none() | moments(40),
    )
    return st.lists(clients, min_size=1, max_size=20)


def play(
    world: World,
    workload: Sequence[Client],
    mishaps: Sequence[tuple[float, Callable[[], object]]] = (),
) -> list[Inference]:
    """Each client submits at its time unless the server stops, and leaves when its patience ends;
    the first choice of each. Who wants no certain token leaves as at a stop string."""
    events, taken = list(mishaps), dict[int, Inference]()

    def arrive(number: int, client: Client) -> None:
        asks = {**client.asks}
        asks.setdefault("stored", asks.get("service_class") == "deferred")
        if client.choices > 1:
            asks["group"] = new_group()
        with suppress(DrainingError):
            for choice in range(client.choices):
                one = world.submit(**{**asks, "seed": asks["seed"] + choice}, at_s=client.at_s)
                taken.setdefault(number, one)

    def leave(number: int) -> None:
        if (one := taken.get(number)) is not None:
            world.manager.cancel(one, "cancelled" if one.end_ids else "stop")

    for number, client in enumerate(workload):
        events.append((client.at_s, partial(arrive, number, client)))
        if client.patience_s is not None:
            events.append((client.at_s + client.patience_s, partial(leave, number)))
    world.run(events)
    return [taken[number] for number in sorted(taken)]


def check_closed(world: World) -> None:
    """What holds of every world that has become idle, whatever happened in it."""
    manager, model, books = world.manager, world.model, world.books
    assert model.breaches == []
    assert manager.counts == {"waiting": 0, "running": 0}
    assert world.memory.used == 0
    assert not world.memory._digests
    assert len(books.requests) == len(world.submitted)
    for inference in world.submitted:
        check_ended(inference, model.vocab_size)
        assert sum(record is inference.record for record in books.requests) == 1
    assert sum(record.num_generated for record in books.iterations) == sum(
        record.generated for record in books.requests
    )
    assert sum(record.deferred_generated for record in books.iterations) == sum(
        record.generated for record in books.requests if record.service_class == "deferred"
    )
    for earlier, later in itertools.pairwise(books.iterations):
        assert earlier.start_s + earlier.duration_s <= later.start_s
    for iteration in books.iterations:
        assert iteration.batch_size <= manager.max_batch_size
        assert iteration.num_drawn <= iteration.num_tokens <= iteration.num_positions
        assert iteration.num_drawn <= iteration.num_generated
        if not any(inference.sampling.constraint for inference in world.submitted):
            assert iteration.num_generated == iteration.num_drawn + iteration.accepted_drafts
        if world.mode.ledger is not RectangleLedger:
            assert iteration.num_tokens + iteration.rejected_drafts == iteration.num_positions
    check_busy_periods(books, exact=not manager.lookahead)


def check_ended(inference: Inference, vocab_size: int) -> None:
    record = inference.record
    assert record is not None
    assert inference.event.is_set()
    assert inference.updated.is_set()
    generated = inference.ids[inference.prompt_tokens :]
    seed = inference.sampling.seed
    assert generated == reference(
        inference.ids[: inference.prompt_tokens], len(generated), seed, vocab_size
    )
    assert record.generated == len(generated) <= inference.max_tokens
    assert (record.end, record.accepted_drafts) == (inference.end, inference.accepted_drafts)
    if inference.sampling.logprobs is not None:
        check_scores(inference, generated, vocab_size)
    assert not inference.end_ids & set(generated[:-1])
    assert (record.end == "failed") == (inference.error is not None)
    if record.end == "length":
        assert len(generated) == inference.max_tokens
    if record.end == "stop" and inference.end_ids:
        assert generated[-1] in inference.end_ids
    moments = (
        record.arrival_s,
        record.admitted_s,
        record.first_token_s,
        record.last_token_s,
        record.end_s,
    )
    known = [moment for moment in moments if moment is not None]
    assert known == sorted(known)
    assert (record.first_token_s is None) == (record.last_token_s is None) == (not generated)
    assert record.admitted_s is not None or not generated


def check_scores(inference: Inference, generated: list[int], vocab_size: int) -> None:
    """Each token has its logprob once, however often and in whatever parts it was computed."""
    prompt = inference.ids[: inference.prompt_tokens]
    told = [(score.token, score.logprob) for score in inference.logprobs]
    prefixes = [[*prompt, *generated[:n]] for n in range(len(generated))]
    assert told == [
        (token, reference_logprob(prefix, token, vocab_size))
        for prefix, token in zip(prefixes, generated, strict=True)
    ]
    tokens = [score.token for score in inference.prompt_logprobs]
    assert tokens == prompt[1 : len(tokens) + 1]
    assert len(tokens) == len(prompt) - 1 or not generated


def check_busy_periods(books: Records, *, exact: bool) -> None:
    """Work is present from the arrival of a request to its end; not `exact`: or longer, since what
    was in flight is still to come."""
    for (_, end_s), (start_s, _) in itertools.pairwise(books.busy_periods):
        assert end_s <= start_s, "busy periods overlap"
    presence = [(record.arrival_s, record.end_s) for record in books.requests]
    assert merged([*books.busy_periods, *presence]) == merged(books.busy_periods)
    assert not exact or merged(books.busy_periods) == merged(presence)


def merged(busy_periods: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Their union, as disjoint intervals that do not touch; empty ones vanish."""
    union: list[tuple[float, float]] = []
    for start_s, end_s in sorted(busy_periods):
        if start_s == end_s:
            continue
        if union and start_s <= union[-1][1]:
            union[-1] = (union[-1][0], max(end_s, union[-1][1]))
        else:
            union.append((start_s, end_s))
    return union
