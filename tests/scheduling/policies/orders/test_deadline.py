"""Orders that change with time: what is due first and what can no longer be in time; and the wait
over the work, both in tokens of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.orders.deadline import Deadline
from scheduling.policies.orders.hrrn import HRRN
from scheduling.prediction.predictor import Predictor
from tests.scheduling.shown import Shown, order_of
from tests.scheduling.step_times import FixedStepTime

NOW_S = 100.0
# under the law a prompt token takes 10 us in a large iteration, and a decode alone 1.1 ms
LONG, LONG_S = 4000, 0.040


def due_first(
    *waiting: Shown, predictor: Predictor | None = None, hits: Mapping[int, int] | None = None
) -> list[int]:
    return order_of(Deadline(predictor=predictor), waiting, now_s=NOW_S, hits=hits)


def due(id: int, in_s: float, *, asked_s: float = 1.0, prompt_tokens: int = 4) -> Shown:
    """Its first token is due so many seconds from now."""
    arrival_s = NOW_S + in_s - asked_s
    return Shown(id, arrival_s, prompt_tokens=prompt_tokens, ttft_target_s=asked_s)


@pytest.mark.parametrize(
    ("waiting", "first"),
    [
        ([due(1, 0.8, asked_s=1.8), due(2, 0.6), due(3, 0.5)], [3, 2, 1]),
        # without a target for the first token the deadline counts, or else the default of 1 s
        ([Shown(1, NOW_S - 0.5), due(2, 0.1, asked_s=0.5), due(3, 1.7, asked_s=2.0)], [2, 1, 3]),
        ([Shown(1, NOW_S - 0.5, deadline_s=0.6), due(2, 0.3)], [1, 2]),
        ([replace(due(3, 0.2), deadline_s=30.0), due(2, 0.3)], [3, 2]),
        # what can no longer be in time is behind all that can
        ([due(1, -0.2), due(2, -0.1), due(3, 60.0)], [3, 1, 2]),
        # but not if its target was met before it was preempted
        ([Shown(1, NOW_S - 50.0, generated=20), due(2, 0.5), due(3, 0.2)], [1, 3, 2]),
        ([Shown(1, NOW_S - 50.0, generated=20, deadline_s=1.0), due(2, 0.5)], [2, 1]),
    ],
)
@pytest.mark.parametrize("predictor", [None, FixedStepTime(known=False), FixedStepTime()])
def test_what_is_due_is_first_and_then_what_can_no_longer_be_in_time(
    waiting: Sequence[Shown], first: list[int], predictor: Predictor | None
) -> None:
    assert due_first(*waiting, predictor=predictor) == first


def test_work_without_prefix_hits_is_added_to_the_deadline_once_the_step_time_is_known() -> None:
    long, short = due(1, 0.50, prompt_tokens=LONG), due(2, 0.50 + LONG_S / 2)
    hopeless, hits = due(1, LONG_S / 2, prompt_tokens=LONG), {1: LONG - 100}
    for first in (long, hopeless):
        assert due_first(first, short) == [1, 2]
        assert due_first(first, short, predictor=FixedStepTime()) == [2, 1]
        assert due_first(first, short, predictor=FixedStepTime(), hits=hits) == [1, 2]
    # of a response, all that it is likely to generate is work
    response, short = Shown(1, NOW_S - 0.5, max_tokens=100, deadline_s=1.0), due(9, 0.55)
    for request, found in ((response, [9, 1]), (replace(response, predicted=10), [1, 9])):
        assert due_first(request, short, predictor=FixedStepTime()) == found


# --- the highest response ratio -------------------------------------------------------------

COMPUTED = 1000  # tokens of prompts since the server started


@given(
    st.lists(st.tuples(st.integers(0, COMPUTED), st.integers(2, 60), st.booleans()), max_size=12)
)
def test_ratios_fall_along_the_queue_and_of_equals_the_older_is_first(
    told: list[tuple[int, int, bool]],
) -> None:
    """Each has seen the server compute so many tokens of prompts, and has so long a prompt, of
    which half may be a prefix hit: this is no work."""
    waiting = [
        Shown(id, prompt_tokens=prompt, prefill_before=COMPUTED - since)
        for id, (since, prompt, _) in enumerate(told)
    ]
    hits = {id: prompt // 2 for id, (_, prompt, cached) in enumerate(told) if cached}
    ratio = {id: of[0] / (of[1] - hits.get(id, 0)) for id, of in enumerate(told)}
    found = order_of(HRRN(), waiting, hits=hits, prefill_tokens=COMPUTED)
    assert found == sorted(ratio, key=lambda id: (-ratio[id], id))
