"""Growth of residents: what a plan becomes when memory runs short."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.growth import with_growth
from seams import Advance, Plan, Request, ServiceClass
from tests.scheduling.shown import Shown, queues, view

RESIDENTS = st.lists(
    st.tuples(
        st.integers(1, 12),
        st.integers(1, 20),
        st.sampled_from([0, 0, 0, 1, 4]),
        st.sampled_from(["immediate", "deferred"]),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=400)
@given(
    drawn=RESIDENTS,
    waiting=queues(4),
    free=st.integers(0, 12),
    growth_tokens=st.integers(1, 5),
    order=st.randoms(),
)
def test_after_growth_everybody_who_advances_has_room_and_the_oldest_has_stayed(
    drawn: list[tuple[int, int, int, ServiceClass]],
    waiting: list[Shown],
    free: int,
    growth_tokens: int,
    order: st.DataObject,
) -> None:
    """Residents decode; each has room for so many tokens beyond those it has computed."""
    residents = [
        Shown(
            id,
            prompt_tokens=prompt,
            max_tokens=40,
            generated=n,
            computed=prompt + n - 1,
            service_class=service_class,
            room=prompt + n - 1 + spare,
        )
        for id, (prompt, n, spare, service_class) in enumerate(drawn, start=1000)
    ]
    room = {r.id: r.room for r in residents}
    dear = sorted(residents, key=lambda r: (r.service_class == "deferred", r.id))
    oldest = dear[0].id
    order.shuffle(residents)  # type: ignore[attr-defined]
    alone = max(room.values()) + growth_tokens  # whoever is the oldest fits alone
    budget = max(sum(room.values()) + free, alone)
    shown = view(waiting, residents, budget=budget, used=sum(room.values()))
    plan = Plan([Advance(r, 1) for r in residents] + [Advance(w, w.known) for w in waiting])

    growth = with_growth(plan, shown, growth_tokens)

    gone = {request.id for request in growth.preempt}
    assert oldest not in gone
    after = {id: growth.room.get(id, room[id]) for id in room if id not in gone}
    assert growth.room.keys() <= after.keys()
    advanced = [step.request for step in growth.advance]
    assert [r for r in advanced if r.id in room] == [r for r in residents if r.id not in gone]
    assert all(r.computed + 1 <= after[r.id] for r in advanced if r.id in room)
    new = [request for request in advanced if request.id not in room]
    assert new == waiting[: len(new)]
    if growth.room or gone:
        cost = shown.memory.cost([request.need for request in new])
        assert sum(after.values()) + cost <= budget
    if gone:
        assert not new
        others = [dearness(r) for r in residents if r.id not in gone and r.id != oldest]
        assert all(dearness(r) <= least for r in growth.preempt for least in others)


def dearness(request: Request) -> tuple[bool, int]:
    return request.service_class == "immediate", request.computed


def test_a_plan_that_needs_no_growth_stays_as_it_is() -> None:
    resident = Shown(1, generated=2, computed=5, room=8)
    plan = Plan([Advance(resident, 1), Advance(Shown(2), 4)])
    growth = with_growth(plan, view([Shown(2)], [resident], used=8), 3)
    assert (growth.advance, growth.preempt, growth.room) == (plan.advance, (), {})


def test_room_grows_by_a_step_and_never_beyond_what_the_request_may_need() -> None:
    early = Shown(1, prompt_tokens=4, max_tokens=20, generated=2, computed=5, room=5)
    late = Shown(2, prompt_tokens=4, max_tokens=8, generated=7, computed=10, room=10)
    plan = Plan([Advance(early, 1), Advance(late, 1)])
    growth = with_growth(plan, view([], [early, late], used=15), 6)
    assert growth.room == {1: 11, 2: 12}


def test_what_the_policy_itself_preempts_is_counted_as_free() -> None:
    stays = Shown(1, prompt_tokens=4, max_tokens=20, generated=2, computed=5, room=5)
    goes = Shown(2, generated=2, computed=5, room=6)
    plan = Plan([Advance(stays, 1)], [goes])
    growth = with_growth(plan, view([], [stays, goes], budget=12, used=11), 6)
    assert (list(growth.preempt), growth.room) == ([goes], {1: 11})
