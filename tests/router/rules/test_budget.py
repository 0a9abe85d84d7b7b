"""A retry budget forgets: in each window a share of what it saw may be sent again."""

from router.rules.budget import FLOOR, RATIO, WINDOW_S, RetryBudget


def retries(budget: RetryBudget, now: float) -> int:
    """How many it grants at once."""
    granted = 0
    while budget.withdraw(now, places=1):
        granted += 1
    return granted


def test_a_budget_counts_the_requests_and_the_retries_of_its_window_alone() -> None:
    budget, busy = RetryBudget(), 100
    for number in range(busy):
        budget.sent(number / busy)
    assert retries(budget, 1.0) == FLOOR + RATIO * busy
    assert retries(budget, WINDOW_S - 0.1) == 0
    # requests and retries of the first two seconds are too old
    assert retries(budget, WINDOW_S + 1.0) == FLOOR
    assert retries(budget, 3.0 * WINDOW_S) == FLOOR
