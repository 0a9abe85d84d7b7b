"""Breaker and retry budget: tables of events against what they must let through."""

from hypothesis import given
from hypothesis import strategies as st

from router.rules.breaker import CLOSE_AFTER, OPEN_AFTER, Breaker, State
from router.rules.budget import FLOOR, RATIO, WINDOW_S, RetryBudget


def failing(breaker: Breaker, times: int, now: float) -> None:
    for _ in range(times):
        breaker.failure(breaker.sent(now), now)


def test_it_opens_after_five_failures_in_a_row_and_not_before() -> None:
    breaker = Breaker(open_s=5)
    failing(breaker, OPEN_AFTER - 1, 0.0)
    breaker.success(breaker.sent(0.0))
    failing(breaker, OPEN_AFTER - 1, 0.0)
    assert breaker.admits(0.0)
    failing(breaker, 1, 0.0)
    assert not breaker.admits(4.9)


def test_half_open_lets_one_through_until_it_has_an_answer() -> None:
    breaker = Breaker(open_s=5)
    failing(breaker, OPEN_AFTER, 0.0)
    trial = breaker.sent(5.0)
    assert not breaker.admits(5.0)
    breaker.began(trial)
    assert breaker.admits(5.0)


def test_two_successes_close_it_and_one_failure_opens_it_again() -> None:
    breaker = Breaker(open_s=5)
    failing(breaker, OPEN_AFTER, 0.0)
    breaker.success(breaker.sent(5.0))
    failing(breaker, 1, 6.0)
    assert breaker.state(10.9) is State.OPEN
    for _ in range(CLOSE_AFTER):
        assert breaker.state(11.0) is State.HALF_OPEN
        breaker.success(breaker.sent(11.0))
    assert breaker.state(11.0) is State.CLOSED


def test_verdicts_on_requests_sent_before_it_opened_do_not_count_after() -> None:
    breaker = Breaker(open_s=5)
    old = [breaker.sent(0.0) for _ in range(4)]
    failing(breaker, OPEN_AFTER, 0.0)
    breaker.sent(5.0)
    breaker.success(old[0])
    breaker.success(old[1])
    assert breaker.state(5.0) is State.HALF_OPEN
    breaker.failure(old[2], 5.0)
    assert breaker.state(5.0) is State.HALF_OPEN
    breaker.began(old[3])
    assert not breaker.admits(5.0)


@given(st.lists(st.tuples(st.sampled_from(["sent", "retry"]), st.floats(0, 3))))
def test_retries_never_exceed_the_budget_of_the_window(
    events: list[tuple[str, float]],
) -> None:
    budget, now = RetryBudget(), 0.0
    sent: list[int] = []
    retries: list[int] = []
    for kind, dt in events:
        now += dt
        recent = [s for s in sent if s > int(now) - WINDOW_S]
        spent = [s for s in retries if s > int(now) - WINDOW_S]
        if kind == "sent":
            budget.sent(now)
            sent.append(int(now))
        else:
            allowed = budget.withdraw(now)
            assert allowed == (len(spent) < RATIO * len(recent) + FLOOR)
            if allowed:
                retries.append(int(now))


def test_a_burst_of_failures_gets_ten_retries_and_no_more() -> None:
    budget = RetryBudget()
    assert sum(budget.withdraw(0.0) for _ in range(50)) == FLOOR
