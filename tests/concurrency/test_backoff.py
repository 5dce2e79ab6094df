"""Waits that grow."""

from oncehook.concurrency.backoff import Backoff


def test_waits_double_up_to_a_limit_and_start_over_after_a_reset() -> None:
    backoff = Backoff(first=1.0, most=4.0)
    waits = [backoff.next_seconds() for _ in range(4)]
    backoff.reset()
    waits.append(backoff.next_seconds())
    for wait, longest in zip(waits, [1, 2, 4, 4, 1], strict=True):
        assert longest / 2 <= wait <= longest
