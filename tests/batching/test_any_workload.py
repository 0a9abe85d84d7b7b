"""Properties of every mode and policy under random workloads and mishaps, in virtual time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from engine.failures import LOSSES_IN_A_BATCH
from engine.lifecycle import Arrived, Ended
from generate.modes import RectangleLedger
from scheduling.prediction.predictor import Predictor
from scheduling.registry import with_deferred
from seams import Constraint, IterationRecord, Policy
from tests.batching.modes import MODES, Mode, every_mode_and_policy
from tests.batching.virtual import TICK_S, Client, World, check_closed, moments, play, workloads
from tests.examples import examples
from tests.scheduling.shown import signals

POISON = 13  # no other request holds it
LIMITS = st.fixed_dictionaries(
    {
        "max_batch_size": st.integers(1, 8),
        "budget": st.integers(48, 400),  # at least one request of any size
        "block_tokens": st.sampled_from([1, 2, 4]),
        "lookahead": st.sampled_from([0, 1]),
        "max_wait_s": moments(30),
    }
)
ASKED: dict[str, st.SearchStrategy[Any]] = {
    "constraint": st.sampled_from([None, None, Constraint("json_schema", "{}")]),
    "scored": st.booleans(),
    "service_class": st.sampled_from(["immediate", "immediate", "deferred"]),
    "deadline_s": st.none() | moments(400),
}


@dataclass(frozen=True, slots=True)
class Mishaps:
    """What goes wrong while clients are served."""

    failing: frozenset[int] = frozenset()  # iterations
    losing: frozenset[int] = frozenset()  # the model, in these iterations
    late: bool = True
    shortages: tuple[tuple[float, int | None], ...] = ()
    absence: tuple[float, float] | None = None  # of the model: since when, how long
    stop: tuple[float, bool] | None = None  # of the server: when, whether gracefully

    def befall(self, world: World) -> list[tuple[float, Callable[[], object]]]:
        model = world.model
        model.fail_on, model.lose_on = self.failing - self.losing, self.losing
        model.fails_late = self.late
        events: list[tuple[float, Callable[[], object]]] = [
            (at_s, partial(setattr, model, "max_rows", rows)) for at_s, rows in self.shortages
        ]
        if self.absence is not None:
            from_s, for_s = self.absence
            events += [(from_s, partial(world.away, "gone"))]
            events += [(from_s + for_s, partial(world.away, None))]
        if self.stop is not None:
            at_s, graceful = self.stop
            stop = world.manager.drain if graceful else partial(world.manager.abort, "going")
            events.append((at_s, stop))
        return events


MISHAPS = st.builds(
    Mishaps,
    failing=st.frozensets(st.integers(1, 30), max_size=2),
    losing=st.frozensets(st.integers(1, 40), max_size=LOSSES_IN_A_BATCH - 1),
    late=st.booleans(),
    shortages=st.lists(st.tuples(moments(100), st.none() | st.integers(1, 6)), max_size=2).map(
        tuple
    ),
    absence=st.none() | st.tuples(moments(80), moments(40)),
    stop=st.none() | st.none() | st.tuples(moments(80), st.booleans()),
)


def one(ticks: int, prompt: int, max_tokens: int) -> Client:
    return Client(ticks * TICK_S, {"prompt": [0] * prompt, "max_tokens": max_tokens, "seed": 0})


# under `tgi`, one is preempted while an iteration in which it is paused is in flight
PREEMPTED_IN_FLIGHT = [
    *[one(0, 1, 1)] * 7, one(0, 1, 9), one(0, 1, 6), one(0, 1, 1), one(6, 1, 6), one(7, 4, 5),
    one(7, 20, 3),
]  # fmt: skip
SMALL = {"max_batch_size": 4, "budget": 48, "block_tokens": 1, "lookahead": 1}


@every_mode_and_policy
@examples(20, 300)
@example(PREEMPTED_IN_FLIGHT, SMALL, "fifo", 0, Mishaps())
@given(
    workload=workloads(3, signals(), **ASKED),
    limits=LIMITS,
    way=st.sampled_from(["fifo", "budget", "priority", "exclusive"]),
    speculate=st.integers(0, 5),
    mishaps=st.just(Mishaps()) | MISHAPS,
)
def test_every_client_gets_the_tokens_it_would_get_alone_and_the_books_close(
    mode: Mode,
    workload: list[Client],
    limits: dict[str, int],
    way: Any,
    speculate: int,
    mishaps: Mishaps,
) -> None:
    """With random requests and signals, departures, failures, losses and shortages of others."""
    in_rows = mode in MODES  # these neither pause a request nor draft
    predictor = Predictor()

    def policy(wait_s: float) -> Policy:
        return with_deferred(
            mode.policy(wait_s),
            predictor,
            mode="static" if in_rows else "dynamic",
            deferred_policy=way,
            deferred_budget=1.3,
            deferred_max_step_ms=3.0,
            deferred_target_ms=None,
        )

    world = World(
        replace(mode, policy=policy),
        **limits,  # type: ignore[arg-type]
        also=predictor,
        speculate=0 if mode.ledger is RectangleLedger else speculate,
    )
    play(world, workload, mishaps.befall(world))
    check_closed(world)
    check_history(world, exact=mishaps == Mishaps())
    assert world.manager.drained == (mishaps.stop is not None)
    aborted = mishaps.stop is not None and not mishaps.stop[1]
    for inference in world.submitted:
        expected = bool(inference.error) and (aborted or bool(mishaps.failing))
        assert (inference.end == "failed") == expected
        assert expected <= (inference.error == "going" or "fails" in (inference.error or ""))
    if all(client.patience_s is None for client in workload):
        assert not any(inference.end == "cancelled" for inference in world.submitted)


def check_history(world: World, *, exact: bool) -> None:
    """Rows add up to their records, and a slot is one request's from its admission until it leaves.
    `exact`: nothing went wrong."""
    new = world.manager.history.since(0)
    done = [event for event in new.events if isinstance(event, IterationRecord)]
    assert new.missed == 0
    assert done == world.books.iterations
    slots, preempted = dict[int, int](), Counter[int]()
    for record in done:
        computed = [row for row in record.rows if row.kind not in ("held", "paused")]
        assert all(row.num_tokens > 0 for row in computed)
        assert sum(row.num_tokens for row in record.rows) == record.num_tokens
        assert record.accepted_drafts == sum(row.accepted for row in record.rows)
        assert record.rejected_drafts == sum(row.rejected for row in record.rows)
        assert record.batch_size == sum(row.kind != "paused" for row in record.rows)
        assert record.used_blocks > 0
        held = record.used_blocks + record.cached_blocks + record.free_blocks
        assert held == world.memory.num_blocks
        preempted.update(record.preempted)
        for id in record.preempted:
            slots.pop(id, None)
        here = {row.request: row.slot for row in record.rows}
        assert len(set(here.values())) == len(here)
        assert max(here.values()) < world.manager.max_resident
        assert all(slots.setdefault(id, slot) == slot for id, slot in here.items())
    ended = [event for event in new.events if isinstance(event, Ended)]
    assert [event.record for event in ended] == world.books.requests
    for event in ended:  # one that never ran again may have been dropped in no iteration at all
        assert preempted[event.request] <= event.record.num_preemptions
        if exact and event.record.end in ("length", "stop"):
            assert preempted[event.request] == event.record.num_preemptions
    arrived = [event.request for event in new.events if isinstance(event, Arrived)]
    assert sorted(arrived) == sorted(event.request for event in ended)


@every_mode_and_policy
@examples(8, 60)
@given(workload=workloads(), limits=LIMITS, at_s=moments(40))
def test_a_request_that_kills_the_model_runs_alone_and_fails_at_the_next_loss(
    mode: Mode, workload: list[Client], limits: dict[str, int], at_s: float
) -> None:
    world = World(mode, **limits)  # type: ignore[arg-type]
    world.model.poison = POISON
    play(world, workload, [(at_s, partial(world.submit, [1, POISON], 5, at_s=at_s))])
    check_closed(world)
    (killer,) = (i for i in world.submitted if POISON in i.ids)
    assert [i for i in world.submitted if i.error] == [killer]
    assert killer.error is not None
    assert killer.error.startswith("the model was lost 4 times while it computed this request")
    assert world.model.losses == LOSSES_IN_A_BATCH + 1
    assert killer.generated == 0
