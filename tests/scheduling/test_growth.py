"""Growth of residents: what a plan becomes when memory runs short."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.growth import with_growth
from seams import Advance, Plan, Request, ServiceClass
from tests.examples import examples
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


@examples(150)
@given(
    drawn=RESIDENTS,
    waiting=queues(4),
    free=st.integers(0, 12),
    growth_tokens=st.integers(1, 5),
    order=st.randoms(),
)
def test_after_growth_every_advancing_request_fits_and_the_oldest_has_stayed(
    drawn: list[tuple[int, int, int, ServiceClass]],
    waiting: list[Shown],
    free: int,
    growth_tokens: int,
    order: st.DataObject,
) -> None:
    """Residents decode; each holds memory for so many tokens beyond those it has computed."""
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
    alone = max(room.values()) + growth_tokens  # so that the oldest fits alone
    budget = max(sum(room.values()) + free, alone)
    shown = view(
        waiting, residents, budget=budget, used=sum(room.values()), growth_tokens=growth_tokens
    )
    plan = Plan([Advance(r, 1) for r in residents] + [Advance(w, w.known) for w in waiting])
    grows = {r.id for r in residents if r.computed + 1 > r.room}

    grown = with_growth(plan, shown)

    gone = {request.id for request in grown.preempt}
    assert oldest not in gone
    advanced = [step.request for step in grown.advance]
    assert [r for r in advanced if r.id in room] == [r for r in residents if r.id not in gone]
    new = [request for request in advanced if request.id not in room]
    assert new == waiting[: len(new)]
    trial = shown.memory.trial(grown.preempt)
    assert not grows or all(trial.take(step) for step in grown.advance)
    if gone:
        assert not new
        others = [rank(r) for r in residents if r.id not in gone and r.id != oldest]
        assert all(rank(r) <= least for r in grown.preempt for least in others)


def rank(request: Request) -> tuple[bool, int]:
    return request.service_class == "immediate", request.computed


def test_residents_that_pause_leave_before_those_that_run() -> None:
    def decoding(id: int, computed: int) -> Shown:
        return Shown(id, computed=computed, generated=computed - 3, max_tokens=40, room=computed)

    oldest, paused, urgent = decoding(1, 20), decoding(2, 18), decoding(3, 6)
    shown = view([], [oldest, paused, urgent], budget=44, used=44, growth_tokens=4)
    grown = with_growth(Plan([Advance(oldest, 1), Advance(urgent, 1)]), shown)
    assert [request.id for request in grown.preempt] == [2]
    assert [step.request.id for step in grown.advance] == [1, 3]
