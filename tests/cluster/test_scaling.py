"""How many servers there should be."""

from hypothesis import given
from hypothesis import strategies as st

from cluster.scaling import DOWN_AFTER_S, UP_AFTER_S, Scaling


def played(scaling: Scaling, present: int, waiting: int, running: int, lasting_s: float) -> int:
    """The number after so long of the same load, each server ready at once."""
    for now_s in range(int(lasting_s) + 1):
        present = scaling.wanted(float(now_s), present, present, waiting, running)
    return present


def test_waiting_requests_start_as_many_servers_as_serve_them() -> None:
    assert played(Scaling(2, 8, places=4), 2, waiting=9, running=8, lasting_s=UP_AFTER_S - 1) == 2
    assert played(Scaling(2, 8, places=4), 2, waiting=9, running=8, lasting_s=UP_AFTER_S) == 5
    assert played(Scaling(2, 8, places=4), 2, waiting=900, running=8, lasting_s=UP_AFTER_S) == 8


def test_no_further_server_is_started_while_one_starts() -> None:
    scaling = Scaling(1, 8, places=4)
    assert all(scaling.wanted(float(s), 2, 1, 50, 4) == 2 for s in range(100))


def test_after_a_calm_one_server_ends_at_a_time_if_the_others_have_room() -> None:
    assert played(Scaling(1, 8, places=10), 3, waiting=0, running=16, lasting_s=DOWN_AFTER_S) == 2
    assert played(Scaling(1, 8, places=10), 3, waiting=0, running=17, lasting_s=999) == 3
    assert played(Scaling(2, 8, places=10), 3, waiting=0, running=0, lasting_s=999) == 2


def test_a_calm_begins_again_when_a_server_is_lost() -> None:
    scaling = Scaling(1, 8, places=10)
    for second in range(int(DOWN_AFTER_S) + 1):
        ready = 1 if second == 30 else 2
        assert scaling.wanted(float(second), 2, ready, 0, 0) == 2


loads = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=100)


@given(least=st.integers(1, 4), more=st.integers(0, 6), places=st.integers(1, 8), loads=loads)
def test_the_number_stays_in_its_range(
    least: int, more: int, places: int, loads: list[tuple[int, int]]
) -> None:
    scaling, present = Scaling(least, least + more, places), least
    for second, (waiting, running) in enumerate(loads):
        present = scaling.wanted(10.0 * second, present, present, waiting, running)
        assert least <= present <= least + more
