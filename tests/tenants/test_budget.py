"""The token bucket of one process."""

import pytest

from oncehook.tenants.budget import Budget


def test_budget_allows_a_burst_of_one_second_and_then_its_rate() -> None:
    budget = Budget(10.0)
    assert sum(budget.take(100.0) for _ in range(50)) == 10
    assert sum(budget.take(100.5) for _ in range(50)) == 5
    assert sum(budget.take(200.0) for _ in range(50)) == 10


def test_budget_below_one_per_second_allows_one_at_a_time_and_says_how_long_to_wait() -> None:
    budget = Budget(0.5)
    assert budget.take(0.0) and not budget.take(1.0)
    assert budget.wait == pytest.approx(1.0)
    assert budget.take(2.0)


def test_clock_that_goes_back_adds_nothing() -> None:
    budget = Budget(1.0)
    assert budget.take(100.0)
    assert not budget.take(50.0) and not budget.take(100.0)
