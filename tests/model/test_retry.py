"""Retry policies: whether and when to retry after a failure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oncehook import ConfigurationError, Fail, Retry, RetryLater
from oncehook.model.retry import GiveUp, ScheduleRetry, decide, longest_delays

policies = st.builds(
    Retry,
    attempts=st.integers(1, 50),
    first=st.floats(0, 10),
    factor=st.floats(1, 4),
    most=st.floats(10, 10_000),
)


@given(policies, st.integers(1, 100))
def test_delay_is_random_up_to_a_ceiling_that_grows_to_the_maximum(policy: Retry, attempt: int) -> None:
    longest = decide(policy, attempt, ValueError(), lambda low, high: high)
    shortest = decide(policy, attempt, ValueError(), lambda low, high: low)
    if attempt >= policy.attempts:
        assert longest == shortest == GiveUp()
    else:
        assert shortest == ScheduleRetry(0)
        assert isinstance(longest, ScheduleRetry)
        assert longest.after <= policy.most
        assert longest.after <= policy.ceiling(attempt + 1)


def test_delay_stays_at_the_maximum_however_many_attempts_a_policy_has() -> None:
    policy = Retry(attempts=100_000, factor=10.0, most=60.0)
    assert [policy.ceiling(attempt) for attempt in (2, 400, 99_999)] == [50.0, 60.0, 60.0]
    assert Retry(attempts=5, factor=1e200, most=60.0).ceiling(4) == 60.0, "the factor may be any number"


def test_delay_is_the_longest_one_for_tests() -> None:
    with longest_delays():
        assert decide(Retry(first=5.0), 1, ValueError()) == ScheduleRetry(5.0)
    assert {decide(Retry(first=5.0), 1, ValueError()) for _ in range(20)} != {ScheduleRetry(5.0)}


def test_handler_that_raises_fail_is_not_retried() -> None:
    assert decide(Retry(), 1, Fail("no such customer")) == GiveUp()


def test_retry_later_is_never_earlier_than_requested() -> None:
    decision = decide(Retry(), 1, RetryLater(after="2m"))
    assert isinstance(decision, ScheduleRetry)
    assert 120 <= decision.after <= 132


def test_retry_later_counts_as_an_attempt() -> None:
    assert decide(Retry(attempts=3), 3, RetryLater(after="2m")) == GiveUp()


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"first": -1}, {"factor": 0.5}, {"first": 10, "most": 5}])
def test_invalid_policy_is_an_error(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="is not a valid policy"):
        Retry(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"first": "1s"}, {"most": None}, {"attempts": True}])
def test_policy_with_a_value_that_is_no_number_is_an_error(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigurationError, match=rf"Retry\({name}=.*: {name} is a number"):
        Retry(**wrong)  # type: ignore[arg-type]
