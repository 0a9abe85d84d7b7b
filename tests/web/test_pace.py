"""Refusals of an address that causes many are late, by a clock that the test moves."""

from __future__ import annotations

import pytest

from web.pace import AT_ONCE, MOST_ADDRESSES, MOST_LATE_S, PER_S, Pace, is_paced


def test_the_first_refusals_are_not_late_and_then_each_is_later_up_to_a_limit() -> None:
    now_s = [100.0]
    pace = Pace(lambda: now_s[0])
    late = [pace.late_s("a") for _ in range(AT_ONCE + 1000)]
    assert late[:AT_ONCE] == pytest.approx([0.0] * AT_ONCE)
    assert late[AT_ONCE : AT_ONCE + 3] == pytest.approx([1 / PER_S, 2 / PER_S, 3 / PER_S])
    assert late[-1] == pytest.approx(MOST_LATE_S)
    assert pace.late_s("b") == 0.0
    now_s[0] += MOST_LATE_S
    assert pace.late_s("a") == pytest.approx(1 / PER_S)
    now_s[0] += AT_ONCE / PER_S + 1
    assert pace.late_s("a") == 0.0


def test_no_more_addresses_are_kept_than_allowed() -> None:
    pace = Pace(lambda: 0.0)
    for number in range(2 * MOST_ADDRESSES):
        pace.late_s(str(number))
    assert len(pace._paid_s) == MOST_ADDRESSES


def test_only_what_clients_do_wrong_is_paced() -> None:
    assert [
        status for status in (200, 308, 400, 404, 408, 413, 429, 500, 503) if is_paced(status)
    ] == [400, 404, 413]
