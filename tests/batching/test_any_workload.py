"""Properties of every mode under random workloads, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inference import Inference, TooLongError
from requested import Constraint, ServiceClass
from scheduling.registry import IN_ORDER as ADMIT_IN_ORDER
from tests.batching.modes import DYNAMIC_MODES, MODES, Mode, every, every_mode, every_policy
from tests.batching.virtual import TICK_S, World, check_closed
from tests.examples import examples
from tests.scheduling.shown import signals

TOKENS = st.integers(0, 12)
LIMITS = st.fixed_dictionaries(
    {
        "max_batch_size": st.integers(1, 8),
        "budget": st.integers(48, 400),
        "block_tokens": st.sampled_from([1, 4]),
        "lookahead": st.sampled_from([0, 1]),
    }
)


@dataclass(frozen=True, slots=True)
class Client:
    """One request of a workload, and when its client loses patience."""

    at_s: float
    prompt: list[int]
    max_tokens: int
    seed: int
    end_ids: frozenset[int]
    patience_s: float | None
    streaming: bool
    service_class: ServiceClass = "immediate"
    deadline_s: float | None = None
    constraint: Constraint | None = None
    told: Mapping[str, Any] = field(default_factory=dict)  # the signals


def moments(most: int) -> st.SearchStrategy[float]:
    return st.integers(0, most).map(lambda ticks: ticks * TICK_S)


def workloads(**more: st.SearchStrategy[object]) -> st.SearchStrategy[list[Client]]:
    clients = st.builds(
        Client,
        at_s=moments(60),
        prompt=st.lists(TOKENS, min_size=1, max_size=20),
        max_tokens=st.integers(1, 24),
        seed=st.integers(0, 2**64 - 1),
        end_ids=st.one_of(st.just(frozenset[int]()), st.frozensets(TOKENS, max_size=2)),
        patience_s=st.one_of(st.none(), st.none(), moments(40)),
        streaming=st.booleans(),
        **more,
    )
    return st.lists(clients, min_size=1, max_size=20)


WORKLOADS = workloads()
WORLDS = st.fixed_dictionaries(
    {
        "max_batch_size": st.integers(1, 8),
        "max_wait_s": moments(30),
        "budget": st.integers(44, 400),  # at least one request of any size
    }
)


def play(
    world: World,
    workload: Sequence[Client],
    mishaps: Sequence[tuple[float, Callable[[], object]]] = (),
) -> list[Inference]:
    """Each client submits at its time, and leaves when its patience ends; their requests."""
    events = list(mishaps)
    visits = [Visit(world, client) for client in workload]
    for visit, client in zip(visits, workload, strict=True):
        events.append((client.at_s, visit.arrive))
        if client.patience_s is not None:
            events.append((client.at_s + client.patience_s, visit.leave))
    world.run(events)
    return [visit.inference for visit in visits]


class Visit:
    """What a client does in a world."""

    def __init__(self, world: World, client: Client) -> None:
        self.world, self.client = world, client

    def arrive(self) -> None:
        self.inference = self.world.submit(
            self.client.prompt,
            self.client.max_tokens,
            self.client.seed,
            at_s=self.client.at_s,
            end_ids=self.client.end_ids,
            streaming=self.client.streaming,
            service_class=self.client.service_class,
            deadline_s=self.client.deadline_s,
            stored=self.client.service_class == "deferred",
            constraint=self.client.constraint,
            **self.client.told,
        )

    def leave(self) -> None:
        self.world.manager.cancel(self.inference)


def admitted_s(inference: Inference) -> float:
    assert inference.record is not None
    at_s = inference.record.admitted_s
    return inference.record.end_s if at_s is None else at_s


IN_ORDER = [
    MODES[0],
    *(mode for mode in DYNAMIC_MODES if mode.name.split(",")[0] in ADMIT_IN_ORDER),
]


@every_policy
@examples(4, 80)
@given(
    workload=workloads(told=signals()),
    limits=LIMITS,
    failing=st.frozensets(st.integers(1, 30), max_size=1),
)
def test_every_client_gets_its_tokens_whatever_it_tells_the_policy(
    mode: Mode, workload: list[Client], limits: dict[str, int], failing: frozenset[int]
) -> None:
    """And the books close: no request is left, and no block in use."""
    world = World(mode, **limits)  # type: ignore[arg-type]
    world.model.fail_on = failing
    inferences = play(world, workload)
    check_closed(world)
    for inference, client in zip(inferences, workload, strict=True):
        patient = client.patience_s is None and not failing
        assert not patient or inference.end in ("length", "stop")


@every(IN_ORDER)
@examples(40)
@given(workload=WORKLOADS, limits=WORLDS, max_rows=st.one_of(st.none(), st.integers(1, 8)))
def test_nobody_is_overtaken_where_service_is_first_come_first_served(
    mode: Mode, workload: list[Client], limits: dict[str, float], max_rows: int | None
) -> None:
    world = World(mode, **limits)  # type: ignore[arg-type]
    world.model.max_rows = max_rows
    play(world, workload)
    places_s = [admitted_s(inference) for inference in world.submitted]
    for index, inference in enumerate(world.submitted):
        if inference.admitted_s is not None:
            assert max(places_s[: index + 1]) == inference.admitted_s


@examples(80, 200)
@given(workload=WORKLOADS, limits=WORLDS)
def test_orca_admits_whoever_fits_at_every_iteration(
    workload: list[Client], limits: dict[str, float]
) -> None:
    world = World(MODES[3], **limits)  # type: ignore[arg-type]
    play(world, workload)
    for decision in world.policy.decisions:
        assert decision.advance[: len(decision.resident)] == decision.resident
        new = decision.advance[len(decision.resident) :]
        assert new == decision.waiting[: len(new)]
        assert len(decision.advance) <= decision.limit
        assert len(decision.advance) == decision.limit or not decision.room_for_one_more


@every(MODES[1:3])
@examples(40)
@given(workload=WORKLOADS, limits=WORLDS)
def test_a_static_batch_forms_in_its_window_and_runs_to_its_end_unchanged(
    mode: Mode, workload: list[Client], limits: dict[str, float]
) -> None:
    world = World(mode, **limits)  # type: ignore[arg-type]
    play(world, workload)
    for decision in world.policy.decisions:
        if decision.resident:
            assert sorted(decision.advance) == sorted(decision.resident)
            continue
        window_ends_s = min(decision.waiting_since_s) + world.max_wait_s
        if not decision.advance:
            assert len(decision.waiting) < decision.limit
            assert decision.now_s < window_ends_s
            continue
        assert len(decision.waiting) >= decision.limit or decision.now_s >= window_ends_s
        size = len(decision.advance)
        assert decision.advance == decision.waiting[:size]
        assert size <= decision.limit
        assert size in (decision.limit, len(decision.waiting)) or not decision.room_for_one_more


@examples(40)
@given(workload=WORKLOADS, limits=WORLDS)
def test_static_answers_leave_with_the_batch_or_each_on_its_own(
    workload: list[Client], limits: dict[str, float]
) -> None:
    """The two forms differ in when an answer leaves and in nothing else."""
    together, alone = World(MODES[1], **limits), World(MODES[2], **limits)  # type: ignore[arg-type]
    patient = [c for c in workload if c.patience_s is None]
    for world in (together, alone):
        play(world, patient)
    assert together.books.iterations == alone.books.iterations
    assert together.books.busy_periods == alone.books.busy_periods
    for a, b in zip(together.submitted, alone.submitted, strict=True):
        assert a.record is not None
        assert b.record is not None
        assert b.record.end_s == b.record.last_token_s == a.record.last_token_s
        batch_end_s = max(
            other.record.last_token_s or 0.0
            for other in together.submitted
            if other.record is not None and other.record.admitted_s == a.record.admitted_s
        )
        assert a.record.end_s == batch_end_s


@every_mode
@given(workload=WORKLOADS, at_s=moments(80), graceful=st.booleans())
def test_a_drained_manager_ends_all_it_accepted_and_an_aborted_one_fails_it(
    mode: Mode, workload: list[Client], at_s: float, graceful: bool
) -> None:
    world = World(mode, max_batch_size=4, budget=400)
    early = [client for client in workload if client.at_s < at_s]
    stop = world.manager.drain if graceful else partial(world.manager.abort, "going")
    events = [(client.at_s, Visit(world, client).arrive) for client in early]
    world.run([*events, (at_s, stop)])
    check_closed(world)
    for inference in world.submitted:
        assert inference.record is not None
        if graceful or inference.record.end_s < at_s:
            assert inference.record.end in ("length", "stop")
        elif inference.record.end == "failed":
            assert inference.error == "going"


@every_mode
def test_a_request_that_could_never_fit_is_refused(mode: Mode) -> None:
    world = World(mode, budget=50, context=40)
    with pytest.raises(TooLongError, match=r"prompt \(30 tokens\) and num_tokens \(11\)"):
        world.submit([1] * 30, 11)
    world = World(mode, budget=50, context=60)
    with pytest.raises(TooLongError, match="needs 51 tokens of KV memory, the server has 50"):
        world.submit([1] * 30, 21)
    world.submit([1] * 30, 20)
    world.run()
    check_closed(world)
