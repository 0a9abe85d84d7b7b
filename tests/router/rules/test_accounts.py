"""The breaker against a plain account."""

from hypothesis import given
from hypothesis import strategies as st

from router.rules.breaker import CLOSE_AFTER, LEAST_FAILURES, REMEMBERED, Breaker, BreakerState
from router.rules.breaker import WINDOW_S as VERDICTS_S


def failing(breaker: Breaker, times: int, now: float) -> None:
    for _ in range(times):
        breaker.failure(breaker.sent(now), now)


def succeeding(breaker: Breaker, times: int, now: float) -> None:
    for _ in range(times):
        breaker.success(breaker.sent(now), now)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 30)), max_size=60))
def test_it_opens_exactly_when_the_recent_rate_exceeds_the_limit(
    events: list[tuple[bool, float]],
) -> None:
    breaker, now = Breaker(open_s=5), 0.0
    verdicts: list[tuple[float, bool]] = []
    for failed, dt in events:
        now += dt
        (failing if failed else succeeding)(breaker, 1, now)
        verdicts.append((now, failed))
        recent = [f for at, f in verdicts[-REMEMBERED:] if at > now - VERDICTS_S]
        bad = failed and sum(recent) >= LEAST_FAILURES and sum(recent) >= len(recent) / 2
        assert (breaker.state(now) is BreakerState.OPEN) == bad
        if bad:
            return


def test_half_open_lets_one_through_at_a_time_two_successes_close_it_and_a_failure_opens() -> None:
    breaker = Breaker(open_s=5)
    failing(breaker, LEAST_FAILURES, 0.0)
    trial = breaker.sent(5.0)
    assert not breaker.admits(5.0)
    breaker.began(trial)
    assert breaker.admits(5.0)
    breaker.success(breaker.sent(5.0), 5.0)
    failing(breaker, 1, 6.0)
    assert breaker.state(10.9) is BreakerState.OPEN
    for _ in range(CLOSE_AFTER):
        assert breaker.state(11.0) is BreakerState.HALF_OPEN
        breaker.success(breaker.sent(11.0), 11.0)
    assert breaker.state(11.0) is BreakerState.CLOSED


def test_verdicts_on_requests_sent_before_it_opened_do_not_count_after() -> None:
    breaker = Breaker(open_s=5)
    old = [breaker.sent(0.0) for _ in range(4)]
    failing(breaker, LEAST_FAILURES, 0.0)
    breaker.sent(5.0)
    breaker.success(old[0], 5.0)
    breaker.success(old[1], 5.0)
    assert breaker.state(5.0) is BreakerState.HALF_OPEN
    breaker.failure(old[2], 5.0)
    assert breaker.state(5.0) is BreakerState.HALF_OPEN
    breaker.began(old[3])
    assert not breaker.admits(5.0)
