"""The learnt lengths of responses."""

from __future__ import annotations

from engine.lengths import LEAST, USERS_KEPT, LengthPredictor


def test_the_median_of_a_users_own_requests_of_this_length_comes_before_that_of_all() -> None:
    lengths = LengthPredictor()
    assert lengths.predict(1, 10) is None
    for generated in (2, 900, 3, 4):
        lengths.learn(1, 10, generated)
    assert lengths.predict(1, 9) == lengths.predict(2, 9) == 4
    assert lengths.predict(1, 100) is None
    for _ in range(LEAST):
        lengths.learn(2, 10, 50)
    assert (lengths.predict(1, 10), lengths.predict(2, 10)) == (4, 50)


def test_of_many_users_the_idle_ones_are_forgotten() -> None:
    lengths = LengthPredictor()
    for _ in range(LEAST):
        lengths.learn(-1, 10, 5)
    for user in range(USERS_KEPT):
        lengths.learn(user, 10, 70)
    assert lengths.predict(-1, 10) == 70
    assert len(lengths._users) == USERS_KEPT
