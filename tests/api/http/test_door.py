"""The door: who enters, in which order, and who waits outside."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from api.http.door import Door


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@given(st.lists(st.sampled_from(["arrive", "finish", "give up"]), max_size=60), st.integers(1, 4))
def test_requests_enter_in_order_of_arrival_and_never_more_than_there_are_places(
    events: list[str], places: int
) -> None:
    door = Door[int](lambda: places, clock=Clock())
    entered, gone = list[int](), set[int]()
    arrived = 0
    for event in events:
        if event == "arrive":
            if door.must_wait():
                door.wait(arrived)
            else:
                door.enter()
                entered.append(arrived)
            arrived += 1
        elif event == "finish" and door.inside:
            door.inside -= 1
            while (one := door.next()) is not None:
                entered.append(one[0])
        elif event == "give up" and door.outside:
            leaves = list(door.outside)[-1]
            door.leave(leaves)
            gone.add(leaves)
        assert door.inside <= places
        assert not door.outside or door.inside == places
    assert entered == sorted(entered)
    assert {*entered, *door.outside, *gone} == set(range(arrived))


def test_nobody_waits_for_longer_than_the_patience() -> None:
    clock = Clock()
    door = Door[str](lambda: 0, patience_s=5.0, clock=clock)
    door.wait("first")
    clock.now_s = 3.0
    door.wait("second")
    assert door.next() is None
    clock.now_s = 5.0
    assert door.next() == ("first", 0.0)
    assert door.next() is None
    assert door.inside == 1


def test_places_that_open_let_everybody_in() -> None:
    """As when the server drains: each then receives its refusal."""
    places = 1.0
    door = Door[str](lambda: places)
    door.enter()
    for name in ("a", "b"):
        door.wait(name)
    places = float("inf")
    found = [door.next(), door.next(), door.next()]
    assert [one and one[0] for one in found] == ["a", "b", None]
