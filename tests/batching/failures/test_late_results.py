"""Iterations that are late: the next one is planned while they are in flight, they fail, and their
requests are cancelled, preempted and resumed meanwhile. With shared prefixes, too."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.orca import Orca
from seams import Advance, Plan, View
from tests.batching.modes import DYNAMIC_MODES, Mode, every_mode_and_policy, every_policy
from tests.batching.test_any_workload import WORKLOADS, Client, moments, play
from tests.batching.virtual import World, check_closed
from tests.examples import examples

LATE = st.fixed_dictionaries(
    {
        "max_batch_size": st.integers(1, 8),
        "budget": st.integers(48, 400),
        "block_tokens": st.sampled_from([1, 2, 4]),
        "lookahead": st.sampled_from([0, 1, 1]),
        "max_wait_s": moments(30),
    }
)


@every_mode_and_policy
@examples(40)
@given(
    workload=WORKLOADS,
    limits=LATE,
    failing=st.frozensets(st.integers(1, 30), max_size=3),
    fails_late=st.booleans(),
    shortages=st.lists(
        st.tuples(moments(100), st.one_of(st.none(), st.integers(1, 6))), max_size=3
    ),
)
def test_failures_and_shortage_late_or_not_change_no_token_and_the_books_close(
    mode: Mode,
    workload: list[Client],
    limits: dict[str, int],
    failing: frozenset[int],
    fails_late: bool,
    shortages: list[tuple[float, int | None]],
) -> None:
    world = World(mode, **limits)  # type: ignore[arg-type]
    model = world.model
    model.fail_on, model.fails_late = failing, fails_late
    play(world, workload, [(s, partial(setattr, model, "max_rows", n)) for s, n in shortages])
    check_closed(world)
    assert world.memory.used == 0
    failed = [i for i in world.submitted if i.record and i.record.end == "failed"]
    assert all("fails" in (i.error or "") for i in failed)
    assert failing or not failed
    if all(client.patience_s is None for client in workload):
        assert not any(i.record.end == "cancelled" for i in world.submitted if i.record)


@every_policy
def test_the_next_iteration_is_started_while_one_is_in_flight(mode: Mode) -> None:
    world = World(mode, lookahead=1)
    for seed in range(4):
        world.submit([seed, 1, 2], 12, seed)
    world.run()
    check_closed(world)
    assert world.model.most_in_flight == 2


def test_an_iteration_in_flight_behind_one_that_fails_counts_as_the_same_failure() -> None:
    world = World(DYNAMIC_MODES[0], max_batch_size=2, lookahead=1)
    world.model.fail_on = {3}
    first, second = world.submit([1], 8), world.submit([2], 8)
    late = world.submit([3], 8)  # waits for a place
    world.run()
    check_closed(world)
    assert [i.end for i in (first, second, late)] == ["failed", "failed", "length"]
    assert world.manager.failed_iterations == {"decode": 1}


def test_a_stop_token_is_noticed_one_iteration_late_and_its_successor_is_dropped() -> None:
    alone = World(DYNAMIC_MODES[0])
    reference = alone.submit([5, 6], 12)
    alone.run()
    end = reference.ids[4]
    world = World(DYNAMIC_MODES[0], lookahead=1)
    stopped, other = world.submit([5, 6], 12, end_ids=[end]), world.submit([7], 12)
    world.run()
    check_closed(world)
    assert stopped.end == "stop"
    assert stopped.ids == reference.ids[: reference.ids.index(end, 2) + 1]
    assert other.end == "length"


def test_an_iteration_behind_one_that_cannot_start_changes_nothing() -> None:
    """Iterations in flight are delivered before the failure is raised."""
    world = World(DYNAMIC_MODES[0], lookahead=1)
    world.model.fail_on, world.model.fails_late = {3}, False
    inference = world.submit([1], 8)
    world.run()
    check_closed(world)
    assert inference.error == "the model failed: iteration 3 fails on request"
    assert inference.generated == 2


class YoungestFirst(Orca):
    """The oldest resident is preempted for a younger waiting request."""

    def plan(self, view: View) -> Plan:
        if view.resident and view.waiting and view.waiting[0].id > view.resident[0].id:
            return Plan([Advance(r, r.known - r.computed) for r in view.waiting], view.resident)
        return super().plan(view)


def test_a_row_that_is_preempted_in_flight_still_receives_its_token() -> None:
    mode = replace(DYNAMIC_MODES[0], policy=lambda _: YoungestFirst())
    world = World(mode, max_batch_size=1, lookahead=1)
    first = world.submit([1, 2], 8)
    world.step()  # the first token is delivered, the second is in flight
    assert (len(first.ids), first.generated) == (3, 2)
    second = world.submit([3], 2)
    world.step()
    assert (len(first.ids), first.num_preemptions) == (4, 0)
    world.step()
    assert (len(first.ids), first.num_preemptions) == (4, 1)
    world.run()
    check_closed(world)
    assert second.end == first.end == "length"
