"""A loop that hangs, and the look at it from outside, in virtual time: the hash model calls back in
the middle of an iteration, which is when the other thread would look."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.iteration import Wait
from scheduling.prediction.step_time import Work
from serving.thread import Liveness
from tests.batching.modes import MODES, Mode, every
from tests.batching.virtual import World, check_closed, drive

HUNG = 3  # number of the iteration that hangs


def in_the_hung_iteration(world: World, look: Callable[[], None]) -> list[int]:
    """Calls `look` in it. Returns the iterations in which it was called."""
    calls: list[int] = []

    def before(number: int) -> None:
        if number == HUNG:
            look()
            calls.append(number)

    world.model.before_iteration = before
    return calls


def ends_of(world: World, look: Callable[[], None]) -> list[str | None]:
    """How all requests end with a look into the hung iteration."""
    calls = in_the_hung_iteration(world, look)
    world.run()
    assert calls == [HUNG]
    check_closed(world)
    return [i.record.end if i.record else None for i in world.submitted]


@every([MODES[1], MODES[3]])
@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("tokens", [HUNG, 9], ids=["its last token is computed", "more would come"])
def test_a_request_past_its_limit_is_answered_while_the_loop_hangs_and_recorded_once(
    mode: Mode, lookahead: int, tokens: int
) -> None:
    world = World(mode, max_batch_size=1, request_timeout_s=10.0, lookahead=lookahead)
    liveness = Liveness(world.manager, lambda _: None)
    running, waiting = world.submit([1, 2], tokens), world.submit([3], 4)
    stored = world.submit([4], 4, service_class="deferred", stored=True)

    def look() -> None:
        unread = world.submit([5], 4, at_s=0.5)
        assert liveness.look(9.9) is None
        assert not any(inference.event.is_set() for inference in world.submitted)
        assert liveness.look(10.2) is None
        for inference in (running, waiting):
            assert inference.event.is_set()
            assert inference.updated.is_set()
            assert inference.record is not None
            assert (inference.record.end, inference.cause) == ("failed", "timeout")
        assert not stored.event.is_set()
        assert not unread.event.is_set()
        assert world.books.requests == []  # the loop's to write
        world.now_s = 10.3

    assert ends_of(world, look) == ["failed", "failed", "length", "length"]


@pytest.mark.parametrize(
    ("predicted_s", "lost_until_s", "stopped_until_s", "limit_s"),
    [(None, 0, 0, 600), (60.0, 0, 0, 600), (100.0, 0, 0, 1000), (None, 5000, 0, 5600),
     (None, 0, 5000, 5600)],
)  # fmt: skip
def test_an_iteration_may_take_ten_times_its_prediction_and_at_least_ten_minutes(
    predicted_s: float | None, lost_until_s: int, stopped_until_s: int, limit_s: int
) -> None:
    """Without the time in which the model is lost or the whole process is stopped."""
    world, asked = World(MODES[3], context=512), list[Work]()
    world.submit([1] * 100, 9)
    world.submit([2], 9)

    def predict(work: Work) -> float | None:
        asked.append(work)
        return predicted_s

    def look() -> None:
        liveness, began_s = Liveness(world.manager, predict), world.manager.step_since_s
        assert began_s is not None
        for at_s in (0, *range(stopped_until_s, limit_s - 9, 50), limit_s - 1):
            world.model.lost = "it is restarted" if at_s <= lost_until_s else None
            assert liveness.look(began_s + at_s) is None
        assert liveness.look(began_s + limit_s + 1) is not None

    calls = in_the_hung_iteration(world, look)
    while world.model.iterations < HUNG:
        world.manager.step(world.mode.lay_out, lambda: world.now_s)
    assert calls == [HUNG], "what was said in it holds"
    assert set(asked) == {Work(2, 2, 2, 105, 105)}


def test_a_loop_without_work_or_without_a_model_does_not_hang() -> None:
    world = World(MODES[3])
    liveness = Liveness(world.manager, lambda _: None)
    assert liveness.look(1e6) is None
    world.submit([1], 2)
    world.manager.drain()
    drive(world.manager, world.mode.lay_out, lambda: world.now_s)
    assert isinstance(world.manager.begin(1.0, world.mode.lay_out), Wait)
    assert liveness.look(1e6) is None
    world.manager.model = None
    assert liveness.look(1e6) is None
