"""A lost model is a preemption of everyone; a request that kills it runs alone, and fails."""

from __future__ import annotations

import threading
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from engine.failures import LOSSES_IN_A_BATCH
from tests.batching.modes import DYNAMIC_MODES, MODES, SHARED, Mode, every_mode_and_policy
from tests.batching.test_any_workload import LIMITS, WORKLOADS, Client, moments, play
from tests.batching.virtual import TICK_S, World, check_closed, drive
from tests.examples import examples

WITH_PREFIXES = next(mode for mode in DYNAMIC_MODES if mode.name.endswith(SHARED))
POISON = 13  # no other request holds it


def away(world: World, reason: str | None) -> None:
    world.model.lost = reason
    if reason is not None:
        world.model.lose()
    else:
        world.manager.wake()


@every_mode_and_policy
@examples(12)
@given(
    workload=WORKLOADS,
    limits=LIMITS,
    losses=st.frozensets(st.integers(1, 40), max_size=LOSSES_IN_A_BATCH - 1),
    fails_late=st.booleans(),
    absence=st.one_of(st.none(), st.tuples(moments(80), moments(40))),
)
def test_losses_of_the_model_cost_nobody_an_answer_or_a_token(
    mode: Mode,
    workload: list[Client],
    limits: dict[str, int],
    losses: frozenset[int],
    fails_late: bool,
    absence: tuple[float, float] | None,
) -> None:
    world = World(mode, **limits)  # type: ignore[arg-type]
    world.model.lose_on, world.model.fails_late = losses, fails_late
    mishaps = []
    if absence is not None:
        from_s, for_s = absence
        mishaps = [
            (from_s, partial(away, world, "gone")),
            (from_s + for_s, partial(away, world, None)),
        ]
    play(world, workload, mishaps)
    check_closed(world)
    assert not [i.error for i in world.submitted if i.error]


@every_mode_and_policy
@examples(12)
@given(workload=WORKLOADS, limits=LIMITS, at_s=moments(40))
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


def test_nobody_joins_a_suspect_before_its_first_token() -> None:
    world = World(MODES[3])
    world.model.lose_on = {1, 2, 3}
    first, second = world.submit([1], 4), world.submit([2], 4)
    world.run()
    check_closed(world)
    assert (first.error, second.error) == (None, None)
    alone = [decision.advance for decision in world.policy.decisions[3:5]]
    assert alone == [[first.id], [second.id]]
    assert world.policy.decisions[5].advance == [second.id, first.id]


def test_a_token_in_between_clears_a_request() -> None:
    world = World(MODES[3])
    world.model.lose_on = {1, 2, 4, 6, 8, 10}  # every second iteration gives a token
    inference = world.submit([1], 8)
    world.run()
    check_closed(world)
    assert inference.end == "length"


def test_a_loss_between_iterations_is_no_requests_fault() -> None:
    world = World(MODES[3])
    inference = world.submit([1], 2)
    for _ in range(2 * LOSSES_IN_A_BATCH):
        world.model.lose()
        world.step()
    world.run()
    check_closed(world)
    assert inference.end == "length"


def test_nothing_cached_survives_the_model() -> None:
    world = World(WITH_PREFIXES, block_tokens=4)
    world.submit([5] * 20, 4)
    world.run()
    assert world.memory.cached > 0
    world.model.lose()
    world.submit([5] * 20, 4)  # the model would compute nonsense from a hit
    world.run()
    check_closed(world)


def test_the_batch_limit_outlives_the_model() -> None:
    world = World(MODES[3])
    world.model.max_rows = 2
    for seed in range(8):
        world.submit([seed], 20, seed)
    while world.policy.decisions[-1:] == [] or world.policy.decisions[-1].limit != 2:
        world.step()
    world.model.lose()
    world.step()
    world.step()
    assert world.policy.decisions[-1].limit == 2
    world.run()
    check_closed(world)


@every_mode_and_policy
def test_while_the_model_is_away_nobody_is_taken_in_and_timeouts_run_on(mode: Mode) -> None:
    world = World(mode, request_timeout_s=100 * TICK_S)
    inference = world.submit([1, 2], 50)
    world.step()
    away(world, "no answer for 5 s")
    assert world.manager.unavailable == "the model is lost: no answer for 5 s"
    assert world.step() == inference.arrival_s + 100 * TICK_S
    world.run()
    check_closed(world)
    assert inference.cause == "timeout"
    away(world, None)
    assert world.manager.ready


def test_a_loop_that_waits_for_its_model_goes_on_when_it_is_back() -> None:
    world = World(MODES[3])
    world.model.lost = "gone"
    waits = threading.Event()

    def clock() -> float:
        waits.set()
        return 0.0

    inference = world.submit([1, 2], 5)
    thread = threading.Thread(target=drive, args=(world.manager, world.mode.lay_out, clock))
    thread.start()
    waits.wait()
    away(world, None)
    assert inference.event.wait(60.0)
    world.manager.drain()
    thread.join(60.0)
    assert inference.end == "length"


def test_a_lost_model_may_return_unless_the_server_ends() -> None:
    world = World(MODES[3])
    manager = world.manager
    assert not manager.recovers
    away(world, "gone")
    assert manager.recovers
    manager.queue.drain()
    assert not manager.recovers
