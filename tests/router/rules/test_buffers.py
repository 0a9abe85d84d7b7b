"""The limit of buffered bytes, against a plain account."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from router.rules.buffers import BufferLimit

LIMIT = 100


@dataclass
class Body:
    buffered_bytes: int = 0


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 60))))
def test_no_more_is_buffered_than_allowed_and_all_of_it_comes_back(
    steps: list[tuple[int, int | None]],
) -> None:
    limit, bodies = BufferLimit(LIMIT), [Body() for _ in range(4)]
    for which, more in steps:
        before = sum(body.buffered_bytes for body in bodies)
        if more is None:
            limit.release_all(bodies[which])
            assert bodies[which].buffered_bytes == 0
        else:
            assert limit.take(bodies[which], more) == (before + more <= LIMIT)
        assert limit.total == sum(body.buffered_bytes for body in bodies) <= LIMIT
    for body in bodies:
        limit.release_all(body)
    assert limit.total == 0
