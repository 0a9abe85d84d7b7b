"""The budget of bytes that are held, against a plain account."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from router.rules.held import HeldBytes

LIMIT = 100


@dataclass
class Body:
    held_bytes: int = 0


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 60))))
def test_no_more_is_held_than_allowed_and_all_of_it_comes_back(
    steps: list[tuple[int, int | None]],
) -> None:
    held, bodies = HeldBytes(LIMIT), [Body() for _ in range(4)]
    for which, more in steps:
        before = sum(body.held_bytes for body in bodies)
        if more is None:
            held.give_back(bodies[which])
            assert bodies[which].held_bytes == 0
        else:
            assert held.take(bodies[which], more) == (before + more <= LIMIT)
        assert held.total == sum(body.held_bytes for body in bodies) <= LIMIT
    for body in bodies:
        held.give_back(body)
    assert held.total == 0
