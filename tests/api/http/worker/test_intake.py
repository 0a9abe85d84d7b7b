"""The intake: which requests get a handler, in which order, and which are pending."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from api.http.worker.intake import Intake


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@given(st.lists(st.sampled_from(["arrive", "finish", "leave"]), max_size=60), st.integers(1, 4))
def test_requests_are_handled_in_order_of_arrival_and_never_more_than_may_be(
    events: list[str], most: int
) -> None:
    intake = Intake[int](lambda: most, clock=Clock())
    handled, gone = list[int](), set[int]()
    arrived = 0
    for event in events:
        if event == "arrive":
            if intake.is_full():
                intake.add(arrived)
            else:
                intake.handle()
                handled.append(arrived)
            arrived += 1
        elif event == "finish" and intake.handled:
            intake.handled -= 1
            while (one := intake.take()) is not None:
                handled.append(one[0])
        elif event == "leave" and intake.pending:
            leaving = list(intake.pending)[-1]
            intake.leave(leaving)
            gone.add(leaving)
        assert intake.handled <= most
        assert not intake.pending or intake.handled == most
    assert handled == sorted(handled)
    assert {*handled, *intake.pending, *gone} == set(range(arrived))


def test_no_request_is_pending_for_longer_than_the_patience() -> None:
    clock = Clock()
    intake = Intake[str](lambda: 0, patience_s=5.0, clock=clock)
    intake.add("first")
    clock.now_s = 3.0
    intake.add("second")
    assert intake.take() is None
    clock.now_s = 5.0
    assert intake.take() == ("first", 0.0)
    assert intake.take() is None
    assert intake.handled == 1


def test_without_a_limit_all_pending_requests_are_handled() -> None:
    """As when the server drains: each then receives its refusal."""
    most = 1.0
    intake = Intake[str](lambda: most)
    intake.handle()
    for name in ("a", "b"):
        intake.add(name)
    most = float("inf")
    found = [intake.take(), intake.take(), intake.take()]
    assert [one and one[0] for one in found] == ["a", "b", None]
