"""How many drafts are planned: as many as make the expected tokens per second largest."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.blocks import Ledger
from engine.inference import Inference
from engine.speculation import FREE_ROWS, MOST_PLANNED, Speculation
from scheduling.prediction.step_time import Work
from seams import Constraint, Drafts, Sampling
from tests.examples import examples
from tests.scheduling.step_times import FixedStepTime


@dataclass
class Steps(FixedStepTime):
    """A step time by the number of rows; None: not learnt."""

    by_rows: list[float] | None = None
    asked: int = 0

    def seconds(self, work: Work) -> float | None:
        self.asked += 1
        if self.by_rows is None:
            return None
        return self.by_rows[min(int(work.num_rows), len(self.by_rows) - 1)]


FREE = [1.0] * 100


def decoding(count: int, max_tokens: int = 100, **more: object) -> tuple[list[Inference], Ledger]:
    """Requests with a prompt of four tokens, of which the newest is not computed."""
    ledger, rows = Ledger(10_000), []
    for id in range(count):
        row = Inference([1, 2, 3, 4], max_tokens, Sampling(**more), 0.0)  # type: ignore[arg-type]
        row.id, row.slot, row.resident = id, id, True
        rows.append(row)
    ledger.open(rows)
    for row in rows:
        row.computed, row.known = 4, 5
        row.ids.append(5)
    return rows, ledger


def planned(
    speculation: Speculation, rows: list[Inference], ledger: Ledger, room: int = 1000
) -> dict[int, int]:
    return speculation.plan([(row, 1) for row in rows], room, ledger)


def test_until_a_step_time_is_learnt_drafts_take_the_rows_that_are_free_everywhere() -> None:
    for count in range(1, FREE_ROWS + 3):
        plan = planned(Speculation(8, Steps()), *decoding(count))
        assert sum(plan.values()) == max(0, FREE_ROWS - count)
        assert not plan or max(plan.values()) - min(plan.values()) <= 1 or len(plan) < count


@pytest.mark.parametrize(
    ("most", "rows", "left", "room", "drafts"),
    [(8, 4, 100, 0, 0), (8, 5, 100, 7, 7), (64, 40, 100, 1000, MOST_PLANNED), (8, 1, 100, 9, 8)]
    + [(8, 1, left, 9, left - 1) for left in (1, 2, 3)],
)
def test_drafts_are_bounded_by_their_options_by_room_and_by_max_tokens(
    most: int, rows: int, left: int, room: int, drafts: int
) -> None:
    steps = Steps(by_rows=FREE)
    plan = planned(Speculation(most, steps), *decoding(rows, max_tokens=1 + left), room=room)
    assert sum(plan.values()) == drafts
    assert steps.asked <= drafts + 1


def test_a_prompt_and_a_row_with_forced_tokens_have_no_drafts() -> None:
    rows, ledger = decoding(3, constraint=Constraint("regex", "a*"))
    rows[0].ids.pop()
    rows[0].computed, rows[0].known = 3, 4
    rows[1].ids.append(6)
    rows[1].known = 6
    assert planned(Speculation(8, Steps(by_rows=FREE)), rows, ledger) == {2: 8}


@given(
    share=st.floats(0.05, 0.98),
    steps=st.lists(st.floats(0.01, 1.0), min_size=12, max_size=12),
    most=st.integers(1, 9),
)
@examples(200, 2000)
def test_the_number_of_drafts_is_the_best_of_all(
    share: float, steps: list[float], most: int
) -> None:
    """Of one row, by E = (1 - a^(k+1)) / (1 - a) expected tokens over the seconds they take."""
    by_rows = [0.0, *(sum(steps[: n + 1]) for n in range(12))]
    speculation = Speculation(most, Steps(by_rows=by_rows))
    rows, ledger = decoding(1)
    rows[0].draft_hits, rows[0].draft_trials = 1e6 * share, 1e6
    plan = planned(speculation, rows, ledger)

    def rate(k: int) -> float:
        return (1 - share ** (k + 1)) / (1 - share) / by_rows[1 + k]

    best = max(range(most + 1), key=rate)
    chosen = plan.get(0, 0)
    if rate(best) < 1.02 * rate(0):
        assert chosen == 0 or rate(chosen) == pytest.approx(rate(best), rel=1e-4)
    else:
        assert rate(chosen) == pytest.approx(rate(best), rel=1e-4)


def test_drafts_that_are_never_accepted_end_and_are_tried_again_later() -> None:
    rows, ledger = decoding(1)
    slope = [0.0, *(1.0 + 0.3 * n for n in range(30))]  # a row costs a fifth of the first
    speculation = Speculation(4, Steps(by_rows=slope))
    rejected = 0
    while plan := planned(speculation, rows, ledger):
        speculation.learn(rows[0], Drafts(plan[0], 0))
        rejected += plan[0]
        assert rejected < 30
    quiet = 0
    while not planned(speculation, rows, ledger):
        quiet += 1
    assert 0 < quiet < 1000


def test_a_new_request_begins_with_what_the_others_saw() -> None:
    rows, ledger = decoding(3)
    slope = [0.0, *(1.0 + 0.3 * n for n in range(30))]
    good, bad = Speculation(4, Steps(by_rows=slope)), Speculation(4, Steps(by_rows=slope))
    for _ in range(30):
        good.learn(rows[0], Drafts(4, 4))
        bad.learn(rows[1], Drafts(4, 0))
    assert planned(good, rows[2:], ledger)[2] > planned(bad, rows[2:], ledger).get(2, 0)
