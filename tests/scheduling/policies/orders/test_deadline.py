"""Orders that change with time: what is due first and what can no longer be in time; and the wait
over the work, both in tokens of prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.orders.deadline import Deadline
from scheduling.policies.orders.hrrn import HRRN
from scheduling.prediction.predictor import StepTime
from scheduling.registry import make_policy
from serving.config import Config
from tests.scheduling.law import Law
from tests.scheduling.shown import Shown, order_of, view

NOW_S = 100.0
# under the law a prompt token takes 10 us in a large iteration, and a decode alone 1.1 ms
LONG, LONG_S = 4000, 0.040


def due_first(
    *waiting: Shown,
    predictor: StepTime | None = None,
    ttft_target_ms: float = 1000.0,
    hits: Mapping[int, int] | None = None,
) -> list[int]:
    return order_of(Deadline(ttft_target_ms, predictor), waiting, now_s=NOW_S, hits=hits)


def due(id: int, in_s: float, *, asked_s: float = 1.0, prompt_tokens: int = 4) -> Shown:
    """Its first token is due so many seconds from now."""
    arrival_s = NOW_S + in_s - asked_s
    return Shown(id, arrival_s, prompt_tokens=prompt_tokens, ttft_target_s=asked_s)


def test_the_nearest_deadline_is_first_whoever_came_first_or_asks_for_less_time() -> None:
    late, soon, sooner = due(1, 0.8, asked_s=1.8), due(2, 0.6, asked_s=1.0), due(3, 0.5)
    assert due_first(late, soon, sooner) == [3, 2, 1]
    waits_for_long, came_now = due(1, 0.8, asked_s=1.8), due(2, 1.4, asked_s=1.5)
    assert due_first(waits_for_long, came_now) == [1, 2]


def test_a_request_without_target_and_deadline_has_the_default_target() -> None:
    without = Shown(1, NOW_S - 0.5)
    others = due(2, 0.1, asked_s=0.5), due(3, 1.7, asked_s=2.0)
    assert due_first(without, *others) == [2, 1, 3]
    assert due_first(without, *others, ttft_target_ms=5000.0) == [2, 3, 1]


def test_a_deadline_of_the_response_counts_where_there_is_no_target_for_its_first_token() -> None:
    response = Shown(1, NOW_S - 0.5, deadline_s=0.6)
    both = Shown(3, NOW_S - 0.3, ttft_target_s=0.5, deadline_s=30.0)
    assert due_first(response, due(2, 0.3), both) == [1, 3, 2]


@pytest.mark.parametrize("predictor", [None, Law(known=False)], ids=["none", "nothing learnt"])
def test_work_is_added_to_the_deadline_once_the_step_time_is_known(
    predictor: StepTime | None,
) -> None:
    long = due(1, 0.50, prompt_tokens=LONG)
    short = due(2, 0.50 + LONG_S / 2)
    assert due_first(long, short, predictor=predictor) == [1, 2]
    assert due_first(long, short, predictor=Law()) == [2, 1]


def test_prefix_hits_are_no_work() -> None:
    long, short = due(1, 0.50, prompt_tokens=LONG), due(2, 0.50 + LONG_S / 2)
    assert due_first(long, short, predictor=Law(), hits={1: LONG - 100}) == [1, 2]


def test_the_work_of_a_response_includes_its_predicted_tokens_that_of_a_first_token_does_not() -> (
    None
):
    other = due(9, 0.55)
    arrival_s = NOW_S - 0.5
    response = Shown(1, arrival_s, deadline_s=1.0, max_tokens=100)
    assert due_first(response, other, predictor=Law()) == [9, 1]
    shorter = Shown(1, arrival_s, deadline_s=1.0, max_tokens=100, predicted=10)
    assert due_first(shorter, other, predictor=Law()) == [1, 9]
    continued = Shown(1, arrival_s, deadline_s=1.0, max_tokens=100, generated=90)
    assert due_first(continued, other, predictor=Law()) == [1, 9]
    first_token = Shown(1, arrival_s, ttft_target_s=1.0, max_tokens=100)
    assert due_first(first_token, other, predictor=Law()) == [1, 9]


def test_what_can_no_longer_be_in_time_is_behind_all_that_can() -> None:
    missed, missed_too, relaxed = due(1, -0.2), due(2, -0.1), due(3, 60.0)
    assert due_first(missed, missed_too, relaxed) == [3, 1, 2]


def test_a_deadline_is_missed_as_soon_as_the_work_no_longer_fits_before_it() -> None:
    hopeless, relaxed = due(1, LONG_S / 2, prompt_tokens=LONG), due(2, 60.0)
    assert due_first(hopeless, relaxed, predictor=Law()) == [2, 1]
    assert due_first(hopeless, relaxed, predictor=None) == [1, 2]
    assert due_first(hopeless, relaxed, predictor=Law(), hits={1: LONG - 100}) == [1, 2]


def test_the_policy_of_this_name_has_its_target_and_the_servers_step_time() -> None:
    config = Config(mode="dynamic", policy="deadline", ttft_target_ms=5000.0, max_batch_size=1)
    without, long, short = (
        Shown(1, NOW_S - 0.5),
        due(2, 0.50, prompt_tokens=LONG),
        due(3, 0.50 + LONG_S / 2),
    )
    waiting = [without, long, short]
    plan = make_policy("deadline", config, Law()).plan(view(waiting, limit=1, budget=9000))
    assert [step.request.id for step in plan.advance] == [3]


def test_a_request_that_was_preempted_after_its_first_token_is_not_hopeless() -> None:
    """Its target is met, however long ago; a deadline of the whole response still counts."""
    resumed = Shown(1, NOW_S - 50.0, generated=20, num_preemptions=1)
    assert due_first(resumed, due(2, 0.5), due(3, 0.2)) == [1, 3, 2]
    late = replace(resumed, deadline_s=1.0)
    assert due_first(late, due(2, 0.5), due(3, 0.2)) == [3, 2, 1]


# --- the highest response ratio -------------------------------------------------------------

COMPUTED = 1000  # tokens of prompts since the server started


def highest_first(*waiting: Shown, hits: Mapping[int, int] | None = None) -> list[int]:
    return order_of(HRRN(), waiting, hits=hits, prefill_tokens=COMPUTED)


def waits(id: int, since: int, prompt_tokens: int) -> Shown:
    """It has seen the server compute `since` tokens of prompts."""
    return Shown(id, prompt_tokens=prompt_tokens, prefill_before=COMPUTED - since)


def test_a_long_prompt_that_has_waited_for_long_comes_before_a_short_one() -> None:
    assert highest_first(waits(1, 400, 200), waits(2, 5, 5)) == [1, 2]
    assert highest_first(waits(1, 400, 200), waits(2, 15, 5)) == [2, 1]


def test_prefix_hits_are_no_work_of_a_ratio() -> None:
    long, short = waits(1, 100, 50), waits(2, 100, 10)
    assert highest_first(long, short) == [2, 1]
    assert highest_first(long, short, hits={1: 45}) == [1, 2]


@given(st.lists(st.tuples(st.integers(0, COMPUTED), st.integers(1, 60)), max_size=12))
def test_ratios_fall_along_the_queue_and_of_equals_the_older_is_first(
    told: list[tuple[int, int]],
) -> None:
    ratio = {id: since / prompt for id, (since, prompt) in enumerate(told)}
    found = highest_first(*(waits(id, since, prompt) for id, (since, prompt) in enumerate(told)))
    assert found == sorted(ratio, key=lambda id: (-ratio[id], id))
