"""The choice among free upstreams."""

import random
from collections import Counter

import pytest

from router.rules.breaker import Breaker
from router.rules.policies import LeastWork, PowerOfTwo, PrefixAffinity, RoundRobin
from router.rules.upstream import Spec, Upstream


def upstream(name: str, in_flight: int = 0, latency_s: float | None = None) -> Upstream:
    made = Upstream(Spec(f"http://{name}:1", 10), "test", Breaker(5))
    made.in_flight, made.latency_s = in_flight, latency_s
    return made


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ([(3, None), (1, 0.9), (2, 0.1)], 1),
        ([(1, 0.3)], 0),
        ([(1, 0.3), (1, 0.1), (1, 0.2)], 1),
        ([(1, 0.1), (1, 0.1), (1, 0.2)], 0),
        ([(1, 0.2), (1, 0.1), (1, 0.1)], 1),
        ([(1, 0.1), (1, None), (1, 0.1)], 1),
    ],
    ids=["connections", "only one", "latency", "a tie at the head", "one further on", "unknown"],
)
def test_fewest_connections_win_then_the_lowest_latency_then_the_first_listed(
    loads: list[tuple[int, float | None]], chosen: int
) -> None:
    fleet = [upstream(f"u{i}", n, latency_s) for i, (n, latency_s) in enumerate(loads)]
    assert LeastWork().choose(fleet, ()) is fleet[chosen]


def test_round_robin_takes_each_in_turn_also_when_one_is_missing_for_a_while() -> None:
    fleet = [upstream(n) for n in "abc"]
    policy = RoundRobin()
    turns = [policy.choose(fleet, ()) for _ in range(3)]
    assert turns == fleet
    assert [policy.choose(fleet[:2], ()) for _ in range(2)] == fleet[:2]
    assert policy.choose(fleet, ()) is fleet[2]


def test_power_of_two_never_takes_the_busiest_and_spreads_over_the_rest() -> None:
    fleet = [upstream("a", 0), upstream("b", 1), upstream("c", 9)]
    policy = PowerOfTwo(random.Random(1))
    counts = Counter(policy.choose(fleet, ()).url for _ in range(300))
    assert set(counts) == {"http://a:1", "http://b:1"}
    assert policy.choose(fleet[2:], ()) is fleet[2]


def test_the_longest_known_prefix_decides_if_it_is_long_and_loads_do_not_differ_much() -> None:
    fleet = [upstream("a"), upstream("b", 1)]
    policy = PrefixAffinity()
    assert policy.choose(fleet, [1, 2, 3]) is fleet[0]
    fleet[0].in_flight = 2
    assert policy.choose(fleet, [7, 8]) is fleet[1]
    fleet[0].in_flight, fleet[1].in_flight = 1, 0
    assert policy.choose(fleet, [1, 2, 3, 4]) is fleet[0]
    assert policy.choose(fleet, [7, 8, 9]) is fleet[1]
    assert policy.choose(fleet, [1, 12, 13, 14, 15]) is fleet[1], "a short common beginning"
    fleet[0].in_flight = 5
    assert policy.choose(fleet, [1, 2, 3]) is fleet[1]


def test_the_memory_of_prefixes_is_bounded() -> None:
    fleet = [upstream("a"), upstream("b")]
    policy = PrefixAffinity(max_blocks=100)
    for block in range(0, 10_000, 5):
        policy.choose(fleet, range(block, block + 5))
    assert len(policy._seen) == 100
