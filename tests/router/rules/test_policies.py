"""The choice among free upstreams."""

import random
from collections import Counter

import pytest

from router.rules.policies import RoundRobin, least_work, power_of_two
from router.rules.request import RoutedRequest
from router.rules.upstream import Spec, Upstream

ANY = RoutedRequest("m")


def upstream(name: str, in_flight: int = 0, latency_s: float | None = None) -> Upstream:
    made = Upstream(Spec(f"http://{name}:1", 10), "test")
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
    assert least_work(fleet, ANY, 0.0) is fleet[chosen]


def test_round_robin_takes_each_in_turn_also_when_one_is_missing_for_a_while() -> None:
    fleet = [upstream(n) for n in "abc"]
    policy = RoundRobin()
    turns = [policy.choose(fleet, ANY, 0.0) for _ in range(3)]
    assert turns == fleet
    assert [policy.choose(fleet[:2], ANY, 0.0) for _ in range(2)] == fleet[:2]
    assert policy.choose(fleet, ANY, 0.0) is fleet[2]


def test_power_of_two_never_takes_the_busiest_and_spreads_over_the_rest() -> None:
    fleet = [upstream("a", 0), upstream("b", 1), upstream("c", 9)]
    rng = random.Random(1)
    counts = Counter(power_of_two(rng, fleet, ANY, 0.0).url for _ in range(300))
    assert set(counts) == {"http://a:1", "http://b:1"}
    assert power_of_two(rng, fleet[2:], ANY, 0.0) is fleet[2]
