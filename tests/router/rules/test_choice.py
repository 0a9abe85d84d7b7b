"""What the choice of a server promises: in virtual time, as `benchmarks.routing` measures it, and
for any prompts and loads."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from functools import partial
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.routing import ONE, POLICY, SHARED, SLOW, Outcome, Scenario, VirtualFleet, arrivals
from router.rules.load import Forecast, RequestWork, StatedUsage, UpstreamLoad, usage_in
from router.rules.messages.request_body import PREFIX_BYTES, parse_body, prefixes
from router.rules.policies import BOUND, MOST_COUNTED, PrefixAffinity, Shares
from router.rules.request import RoutedRequest
from router.rules.upstream import Spec, Upstream

SECONDS = {SLOW: 120, SHARED: 40, ONE: 40}


@functools.cache
def turn(of: Scenario, policy: str, seed: int, routers: int = 1) -> Outcome:
    fleet, rng = VirtualFleet(of.slowness(), policy, routers), random.Random(seed)
    for at, body in arrivals(of, SECONDS[of], seed):
        fleet.at(at, partial(fleet.ask, rng.choice(fleet.routers), body))
    fleet.run()
    for router in fleet.routers:
        assert all(u.in_flight == u.load.outstanding == 0 for u in router.fleet), "leaked"
    return Outcome(fleet.ttft_s, fleet.tokens)


def turns(of: Scenario, policy: str, routers: int = 1) -> list[Outcome]:
    return [turn(of, policy, seed, routers) for seed in range(3)]


def quantile_ms(of: Sequence[Outcome], rank: float) -> float:
    return median(one.quantile_ms(rank) for one in of)


@pytest.mark.parametrize("routers", [1, 2])
def test_a_server_four_times_slower_delays_few(routers: int) -> None:
    least_work, ours = turns(SLOW, "least-work"), turns(SLOW, "least-tokens", routers)
    assert quantile_ms(ours, 0.99) <= 0.5 * quantile_ms(least_work, 0.99)


@pytest.mark.parametrize("routers", [1, 2])
def test_prompts_that_begin_alike_find_their_beginning_computed(routers: int) -> None:
    least_work, ours = turns(SHARED, "least-work"), turns(SHARED, "prefix", routers)
    assert quantile_ms(ours, 0.5) <= 0.6 * quantile_ms(least_work, 0.5)
    assert median(one.most_to_mean() for one in ours) <= 1.3


@pytest.mark.parametrize("routers", [1, 2])
def test_a_prompt_that_everybody_has_does_not_send_everybody_to_one_server(routers: int) -> None:
    least_work, ours = turns(ONE, "least-work"), turns(ONE, "prefix", routers)
    assert quantile_ms(ours, 0.5) <= 1.1 * quantile_ms(least_work, 0.5)
    assert median(one.most_to_mean() for one in ours) <= 1.15


@pytest.mark.parametrize(("of", "policy"), POLICY.items(), ids=lambda each: str(each[0]))
def test_two_routers_of_which_each_sees_its_own_requests_are_nearly_as_good_as_one(
    of: Scenario, policy: str
) -> None:
    one, two = turns(of, policy), turns(of, policy, routers=2)
    assert quantile_ms(two, 0.5) <= 1.15 * quantile_ms(one, 0.5)
    assert quantile_ms(two, 0.99) <= 2 * quantile_ms(one, 0.99)


# --- for any prompts -------------------------------------------------------------------------


def fleet_of(works: Sequence[float]) -> list[Upstream]:
    fleet = [Upstream(Spec(f"http://u{i}:1", 99), "test") for i in range(len(works))]
    for upstream, outstanding in zip(fleet, works, strict=True):
        upstream.load.outstanding = outstanding
    return fleet


PROMPTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60)


def request_of(system: int, user: int, seed: int = 0) -> RoutedRequest:
    text = (f"{system}" * 700 + f"{user}" * 900).encode()
    work = RequestWork(prompt=100.0, output=float(random.Random(seed).randint(1, 200)))
    return RoutedRequest("m", prefixes=prefixes(b"", memoryview(text)), work=work)


@given(PROMPTS, st.lists(st.floats(0, 1e4), min_size=1, max_size=7), st.integers())
def test_no_server_is_chosen_beyond_the_bound_whatever_the_prompts(
    prompts: list[tuple[int, int]], works: list[float], seed: int
) -> None:
    fleet, policy = fleet_of(works), PrefixAffinity(random.Random(seed))
    for number, prompt in enumerate(prompts):
        request = request_of(*prompt, seed=number)
        chosen = policy.choose(fleet, request, 0.0)
        total = sum(u.load.outstanding for u in fleet) + request.work.total
        assert chosen.load.outstanding <= BOUND * total / len(fleet) * 1.000001
        chosen.load.outstanding += request.work.total


@given(PROMPTS, st.integers(2, 7), st.randoms())
def test_all_routers_choose_alike_in_whatever_order_they_list_the_servers(
    prompts: list[tuple[int, int]], servers: int, rng: random.Random
) -> None:
    """Where the load does not decide; they share no memory."""
    fleet = fleet_of([0.0] * servers)
    shuffled = rng.sample(fleet, len(fleet))
    one, other = PrefixAffinity(random.Random(1)), PrefixAffinity(random.Random(2))
    for prompt in prompts[:30]:
        request = request_of(*prompt)
        assert one.choose(fleet, request, 0.0) is other.choose(shuffled, request, 0.0)


@given(st.data())
def test_two_prompts_share_the_hashes_of_their_common_beginning_alone(data: st.DataObject) -> None:
    lengths = st.integers(0, 70_000) | st.sampled_from(PREFIX_BYTES)
    common, more = data.draw(lengths), data.draw(lengths)
    first = b"a" * common + b"b" * more
    second = b"a" * common + b"c" * data.draw(lengths)
    of_first, of_second = (prefixes(b"", memoryview(text)) for text in (first, second))
    equal = [a == b for a, b in zip(first, second, strict=False)]
    shared = [*equal, False].index(False)
    expected = sum(length <= shared for length in PREFIX_BYTES)
    assert of_first[:expected] == of_second[:expected]
    assert not {*of_first[expected:]} & {*of_second[expected:]}
    session = prefixes(b'"s"', memoryview(first))
    assert session[1:] == of_first
    assert (
        session[0]
        == prefixes(b'"s"', memoryview(second))[0]
        != prefixes(b'"t"', memoryview(b""))[0]
    )


def test_the_memory_of_shares_is_bounded_and_keeps_what_is_frequent() -> None:
    shares = Shares()
    for number in range(5 * MOST_COUNTED):
        shares.total += 1
        shares.add(number + 1)
        if number % 2:
            share = shares.add(0)
    assert len(shares._seen) <= MOST_COUNTED
    assert share == pytest.approx(0.5, rel=0.01)


# --- what is known of a load -----------------------------------------------------------------


@given(st.floats(0.001, 0.1), st.floats(0, 0.01), st.integers(1, 30))
def test_the_rate_does_not_depend_on_how_many_requests_are_beside(
    alone_s: float, beside_s: float, seed: int
) -> None:
    """A token takes alone_s + n * beside_s, and four times that on the other server, which has a
    quarter of the requests."""
    rng = random.Random(seed)
    one = UpstreamLoad()
    other = UpstreamLoad(one.slowdown)
    for number in range(2000):
        for load, slower, most in ((one, 1, 16), (other, 4, 4)):
            n = rng.uniform(1, most)
            load.measure(slower * (alone_s + n * beside_s), n, float(number))
    assert one.rate is not None
    assert other.rate is not None
    assert 2.5 <= one.rate / other.rate <= 5.5


def test_what_others_have_on_a_server_counts_until_it_is_done() -> None:
    load, mine = UpstreamLoad(), RequestWork(prompt=100.0, output=50.0)
    mine.start(load, 0.0)
    for _ in range(200):
        load.tell("waiting=2 running=2 free_blocks=7", 0.0)
    assert load.work(0.0) == pytest.approx(200 + 3 * 200, rel=0.01)
    assert 200 < load.work(30.0) < 300
    load.tell("waiting=-1 running=none", 30.0)
    assert load.told == {}


ANSWERS = {
    b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}': StatedUsage(7, 3),
    b'{"usage":{"input_tokens":7,"input_tokens_details":{},"output_tokens":3}}': StatedUsage(7, 3),
    b'{"details": {"generated_tokens": 3}}': StatedUsage(0, 3),
    b'{"text": "\\"prompt_tokens\\": 9"}': None,
    b'{"usage": null}': None,
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_usage_is_found_at_the_end_of_an_answer_and_not_in_its_text(answer: bytes) -> None:
    assert usage_in(answer) == ANSWERS[answer]


@pytest.mark.parametrize(
    ("body", "most"),
    [("{}", None), ('{"max_tokens": 5}', 5), ('{"max_tokens": 5, "n": 3}', 15),
     ('{"max_completion_tokens": 5, "max_tokens": 9}', 5), ('{"max_output_tokens": 5}', 5),
     ('{"parameters": {"max_new_tokens": 5}}', 5), ('{"max_tokens": "5", "n": []}', None),
     ('{"max_tokens": null}', None), ('{"max_tokens": -5}', None)],
)  # fmt: skip
def test_the_limit_of_output_is_that_of_all_dialects(body: str, most: int | None) -> None:
    assert parse_body(body.encode()).max_tokens == most


def test_a_forecast_learns_how_long_prompts_and_answers_are() -> None:
    forecast = Forecast()
    for _ in range(200):
        limited, free = RequestWork(300, 1000), RequestWork(300)
        forecast.learn(limited, StatedUsage(100, 50))
        forecast.learn(free, StatedUsage(100, 40))
    forecast.expect(limited)
    assert limited.prompt == pytest.approx(100)
    assert limited.output == pytest.approx(50)
    forecast.expect(free)
    assert free.output == pytest.approx(40)
    Forecast().expect(huge := RequestWork(0, 10**18))
    assert huge.output <= 1e5
