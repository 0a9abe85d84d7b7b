"""What becomes of a request that ends before its time, in each phase of its life, and of requests
that are none."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from batching import BatchingManager
from engine.blocks import Ledger
from engine.failures import REGROW_S
from engine.inference import DrainingError, Inference, OverloadedError
from requested import Sampling
from scheduling.policies.orca import Orca
from seams import Plan, Request, View
from tests.batching.modes import MODES, Mode, every, every_mode
from tests.batching.virtual import Books, World, check_closed
from tests.support.hash_model import HashModel

NOBATCH, STATIC, STATIC_OWN, DYNAMIC = MODES


@every_mode
def test_one_who_leaves_while_waiting_is_answered_at_once_and_never_admitted(mode: Mode) -> None:
    world = World(mode, max_batch_size=1)
    first, second = world.submit([1], 4), world.submit([2], 4)
    world.step()
    world.manager.cancel(second)
    world.step()
    assert second.record is not None
    assert second.record.end == "cancelled"
    assert second.record.admitted_s is None
    world.run()
    check_closed(world)
    assert first.end == "length"


def test_one_who_leaves_a_dynamic_batch_makes_room_for_the_next_in_the_same_iteration() -> None:
    world = World(DYNAMIC, max_batch_size=1)
    first, second = world.submit([1], 100), world.submit([2], 4)
    world.step()
    world.manager.cancel(first)
    world.step()
    assert first.record is not None
    assert first.record.generated == 1
    assert second.generated == 1
    world.run()
    check_closed(world)


@every([STATIC, STATIC_OWN])
def test_one_who_leaves_a_static_batch_is_answered_but_its_row_stays_to_the_end(mode: Mode) -> None:
    world = World(mode)
    leaver, stayer = world.submit([1], 100), world.submit([2], 6)
    world.step()
    world.manager.cancel(leaver)
    world.step()
    assert leaver.event.is_set()
    world.run()
    check_closed(world)
    assert [record.batch_size for record in world.books.iterations] == [2] * 6
    assert stayer.end == "length"


@every([STATIC, STATIC_OWN])
def test_a_static_batch_that_everybody_left_ends_at_once(mode: Mode) -> None:
    world = World(mode)
    leavers = [world.submit([1], 100), world.submit([2], 60)]
    world.step()
    for leaver in leavers:
        world.manager.cancel(leaver)
    assert world.step() is None
    check_closed(world)
    assert len(world.books.iterations) == 1


def test_a_stop_that_the_handler_found_waits_for_its_static_batch_as_every_end_does() -> None:
    ends_s = {}
    for mode in (STATIC, STATIC_OWN):
        world = World(mode)
        stopped, longest = world.submit([1], 100), world.submit([2], 6)
        world.step()
        found_s = world.now_s
        world.manager.cancel(stopped, "stop")
        world.run()
        check_closed(world)
        assert stopped.record is not None
        assert longest.record is not None
        assert stopped.record.end == "stop"
        ends_s[mode.name] = stopped.record.end_s
        batch_end_s = longest.record.end_s
    assert ends_s == {"static, batch": batch_end_s, "static, own": found_s}


@every_mode
def test_one_who_leaves_after_its_last_token_changes_nothing(mode: Mode) -> None:
    world = World(mode)
    done, other = world.submit([1], 1), world.submit([2], 3)
    world.step()
    world.manager.cancel(done)
    world.manager.cancel(done)
    world.run()
    world.manager.cancel(other)
    world.run()
    check_closed(world)
    assert done.end == other.end == "length"


@every_mode
def test_a_failed_iteration_harms_nobody_outside_it(mode: Mode) -> None:
    world = World(mode, max_batch_size=2)
    inferences = [world.submit([n], 3) for n in range(1, 6)]
    world.model.fail_on = {1}
    world.run()
    check_closed(world)
    failed = [inference for inference in inferences if inference.end == "failed"]
    assert failed == inferences[: world.policy.decisions[0].limit if mode != NOBATCH else 1]
    assert {inference.error for inference in failed} == {
        "the model failed: iteration 1 fails on request"
    }


@every(MODES[1:])
def test_out_of_memory_shrinks_the_batch_and_fails_nobody(mode: Mode) -> None:
    world = World(mode, max_batch_size=8)
    world.model.max_rows = 3
    inferences = [world.submit([n], 5) for n in range(8)]
    world.run()
    check_closed(world)
    assert {inference.end for inference in inferences} == {"length"}
    assert max(record.batch_size for record in world.books.iterations) <= 3


def test_those_whom_a_shortage_put_back_keep_their_places_before_all_who_wait() -> None:
    world = World(DYNAMIC, max_batch_size=4)
    inferences = [world.submit([n], 8) for n in range(6)]
    world.step()
    world.step()
    world.model.max_rows = 2
    world.step()  # too much for the memory there is now
    world.step()
    decision = world.policy.decisions[-1]
    assert decision.resident == []
    assert decision.waiting == [inference.id for inference in inferences]
    assert decision.advance == [inference.id for inference in inferences[:2]]
    assert [inference.generated for inference in inferences] == [3, 3, 2, 2, 0, 0]
    assert [inference.num_preemptions for inference in inferences] == [1, 1, 1, 1, 0, 0]
    world.run()
    check_closed(world)


class Late(Orca):
    """Lets places go only when all are done, and computes the last token of one that is done."""

    def plan(self, view: View) -> Plan:
        plan = super().plan(view)
        return Plan([step for step in plan.advance if step.num_tokens])

    def retire(self, resident: Sequence[Request]) -> Sequence[Request]:
        return resident if all(request.done for request in resident) else ()


def test_a_policy_that_advances_a_request_that_is_done_gets_no_token_out_of_it() -> None:
    world = World(Mode("late", lambda _: Late(), DYNAMIC.lay_out, Ledger))
    short, long = world.submit([1], 2), world.submit([2], 6)
    world.run()
    check_closed(world)
    assert (short.generated, long.generated) == (2, 6)
    assert [record.num_tokens for record in world.books.iterations] == [2, 2, 2, 1, 1, 1]


def test_the_batch_grows_again_within_seconds_of_a_shortage_that_passed() -> None:
    world = World(DYNAMIC, max_batch_size=4, budget=10_000, context=1024)
    inferences = [world.submit([n], 1000) for n in range(8)]
    world.model.max_rows = 2
    world.step()
    world.step()
    world.model.max_rows = None
    world.run()
    check_closed(world)
    assert {inference.end for inference in inferences} == {"length"}
    rows = {record.start_s: record.batch_size for record in world.books.iterations}
    assert {rows for at_s, rows in rows.items() if at_s < REGROW_S} == {2}
    assert max(rows for at_s, rows in rows.items() if at_s < 3 * REGROW_S) == 4


@every_mode
def test_a_request_without_a_prompt_or_without_tokens_to_generate_is_no_request(mode: Mode) -> None:
    world = World(mode)
    other = world.submit([1], 3)
    with pytest.raises(ValueError, match="at least one prompt token"):
        world.submit([], 3)
    with pytest.raises(ValueError, match="at least one token to generate"):
        world.submit([1], 0)
    world.run()
    check_closed(world)
    assert other.end == "length"


@every_mode
def test_requests_while_the_server_stops_or_is_full_are_refused_and_dropped(mode: Mode) -> None:
    world = World(mode, max_batch_size=2, max_waiting=2)
    world.submit([1], 3)
    world.submit([2], 3)
    with pytest.raises(OverloadedError, match="2 requests are waiting already"):
        world.submit([3], 3)
    world.manager.drain()
    assert not world.manager.ready
    with pytest.raises(DrainingError, match="shutting down"):
        world.submit([3], 3)
    world.run()
    check_closed(world)
    assert len(world.books.requests) == 2


@every_mode
def test_deferred_requests_leave_half_of_the_queue_to_immediate_ones(mode: Mode) -> None:
    world = World(mode, max_waiting=4)
    for n in range(2):
        world.submit([n], 3, service_class="deferred")
    with pytest.raises(OverloadedError, match="2 deferred requests are waiting already"):
        world.submit([3], 3, service_class="deferred")
    for n in range(2):
        world.submit([n], 3)
    world.run()
    world.submit([4], 3, service_class="deferred")  # places come back
    world.run()
    check_closed(world)


def test_nobody_is_taken_in_before_the_model_is_there() -> None:
    manager = BatchingManager(Orca(), Books(), max_batch_size=1, max_waiting=1)
    with pytest.raises(DrainingError, match="still being loaded"):
        manager.enqueue(Inference([1], 3, Sampling(), 0.0))
    model = HashModel()
    manager.serve(model, Ledger(model.num_blocks))
    manager.enqueue(Inference([1], 3, Sampling(), 0.0))
    assert manager.ready
