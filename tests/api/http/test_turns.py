"""Long texts take turns; between two turns others have the processor."""

from __future__ import annotations

import contextlib

import pytest

from api.http import turns
from api.http.errors import ApiError
from api.http.turns import PER_S, SHORT, Turns

LONG = SHORT + 1


class Hours:
    """A clock that stands still, except where the test moves it or sleeps."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.slept_s: list[float] = []

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.mark.parametrize("fails", [False, True])
def test_after_a_turn_there_is_none_for_twice_as_long(fails: bool) -> None:
    clock = Hours()
    turn = Turns(clock, clock.sleep).of
    with contextlib.suppress(KeyError), turn(LONG):
        clock.now_s += 0.5
        if fails:
            raise KeyError
    with turn(SHORT):
        pass
    assert clock.slept_s == [0.0]
    with turn(LONG):
        assert clock.slept_s[1] == pytest.approx(1.0 + LONG / PER_S)


def test_a_long_text_that_waits_for_long_is_refused_and_a_short_one_never_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "MOST_WAIT_S", 0.0)
    turn = Turns().of
    with turn(LONG):
        with turn(SHORT):
            pass
        with pytest.raises(ApiError, match="other long texts") as refused, turn(LONG):
            pass
    assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
    with turn(LONG):
        pass
