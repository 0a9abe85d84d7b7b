"""Limits of a minute, and the order of a fair queue, for any requests."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.rules.dispatch import Dispatcher
from router.rules.fleet import Upstreams
from router.rules.limits import MinuteLimits, duration
from router.rules.load import RequestWork, StatedUsage
from router.rules.policies import least_work
from router.rules.request import AttemptEnd, DispatchLimits, NoPlace, RequestState, RoutedRequest
from router.rules.upstream import Spec

TOKENS, REQUESTS = 100, 5
ASKED = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 120), st.floats(0, 30)))


@given(ASKED)
def test_no_client_gets_more_in_any_time_than_fits_into_it(
    asked: list[tuple[str, int, float]],
) -> None:
    """At most a full bucket, and what runs off meanwhile."""
    limits, now = MinuteLimits(REQUESTS, TOKENS), 0.0
    admitted: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for client, tokens, gap_s in asked:
        now += gap_s
        told = limits.headers(client, now)
        left = {kind: int(told[f"x-ratelimit-remaining-{kind}"]) for kind in ("requests", "tokens")}
        over = limits.admit(client, tokens, now)
        if over is None:
            admitted[client].append((now, tokens))
        else:
            assert left["requests"] == 0 or left["tokens"] < tokens
            assert (over.again_s is None) == (over.kind == "tokens" and tokens > TOKENS)
    for those in admitted.values():
        for first, (start, _) in enumerate(those):
            for last in range(first, len(those)):
                minutes = 1 + (those[last][0] - start) / 60
                within = [tokens for _, tokens in those[first : last + 1]]
                assert sum(within) <= TOKENS * minutes + 1e-6
                assert len(within) <= REQUESTS * minutes + 1e-6


def test_who_waits_as_long_as_told_is_admitted_and_idle_clients_are_forgotten() -> None:
    limits = MinuteLimits(0, TOKENS)
    assert limits.admit("a", 80, 0.0) is None
    over = limits.admit("a", 50, 0.0)
    assert over is not None
    assert over.again_s == pytest.approx(18)
    assert limits.admit("a", 50, 18.001) is None
    limits.correct("a", -50, 18.001)
    assert limits.headers("a", 18.001)["x-ratelimit-remaining-tokens"] == "50"
    limits.correct("a", 10**9, 18.001)
    assert limits.admit("a", 1, 18.0 + 121) is None, "at most two minutes"
    for number in range(1000):
        limits.admit(str(number), 1, 1000.0 + number)
    assert len(limits._clients) < 200


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (0.017, "17ms"), (1, "1s"), (1.5, "1.5s"), (60, "1m0s"), (379.2, "6m19.2s")],
)
def test_a_duration_is_written_as_openai_writes_it(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def dispatcher(limits: DispatchLimits) -> Dispatcher:
    fleet = Upstreams()
    fleet.add(Spec("http://u:1", 1), "test").probe_succeeded({"m": b"{}"}, 0.01)
    return Dispatcher(fleet, least_work, limits, lambda request: None)


WAITING = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(1, 400)), max_size=40
)


@given(WAITING)
def test_users_who_wait_are_served_alike_within_a_priority_as_vtc_promises(
    asked: list[tuple[str, int, int]],
) -> None:
    """Where costs are known at the choice, two users who both wait differ by at most the largest
    cost."""
    it = dispatcher(DispatchLimits(max_queue=10**6))
    running = it.arrive(RoutedRequest("m", user="first"), 0.0)
    waiting = [
        it.arrive(RoutedRequest("m", user=user, priority=priority, work=RequestWork(0, most)), 0.0)
        for user, priority, most in asked
    ]
    served: dict[str, float] = defaultdict(float)
    while waiting:
        it.release(
            running, AttemptEnd.SUCCESS, 0.0, usage=StatedUsage(0, round(running.work.output))
        )
        (running,) = (one for one in waiting if one.state is RequestState.PLACED)
        waiting.remove(running)
        assert all(running.priority <= one.priority for one in waiting)
        same = [one for one in waiting if one.priority == running.priority]
        assert all(running.seq < one.seq for one in same if one.user == running.user)
        served[running.user] += running.work.total
        if running.priority == min(priority for _, priority, _ in asked):
            users = {one.user for one in same}
            most = 2.0 * max(tokens for _, _, tokens in asked)
            assert all(served[a] - served[b] <= most for a in users for b in users)


def test_a_user_who_begins_to_wait_late_gets_no_credit_for_the_time_before() -> None:
    it = dispatcher(DispatchLimits(max_queue=100))
    asked = [RoutedRequest("m", user="a", work=RequestWork(0, 10)) for _ in range(6)]
    for request in asked:
        it.arrive(request, 0.0)
    for request in asked[:3]:
        it.release(request, AttemptEnd.SUCCESS, 0.0, usage=StatedUsage(0, 10))
    late = [RoutedRequest("m", user="b", work=RequestWork(0, 10)) for _ in range(2)]
    for request in late:
        it.arrive(request, 0.0)
    order = []
    while running := [r for r in [*asked, *late] if r.state is RequestState.PLACED]:
        order.append(running[0].user)
        it.release(running[0], AttemptEnd.SUCCESS, 0.0, usage=StatedUsage(0, 10))
    assert order == ["a", "a", "b", "a", "b"]


def test_what_a_request_did_not_use_is_given_back() -> None:
    it = dispatcher(DispatchLimits(tokens_per_minute=1000))

    def ask(most: int) -> RoutedRequest:
        return it.arrive(RoutedRequest("m", client="a", work=RequestWork(400, most)), 0.0)

    def left() -> int:
        return int(it.minutes.headers("a", 0.0)["x-ratelimit-remaining-tokens"])

    whole = ask(500)
    assert left() == 400
    it.release(whole, AttemptEnd.SUCCESS, 0.0, usage=StatedUsage(100, 20))
    it.leave(whole, 0.0)
    it.leave(whole, 0.0)
    assert left() == 880
    unanswered = ask(500)
    waiting = ask(10)
    it.leave(waiting, 0.0)
    it.release(unanswered, AttemptEnd.UNREACHABLE, 0.0)
    it.leave(unanswered, 0.0)
    assert left() == 880
    refused = ask(950)
    assert refused.refusal is NoPlace.RATE_LIMIT
    it.leave(refused, 0.0)
    assert left() == 880
