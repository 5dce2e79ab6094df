"""Leased receipts and the results that settle them."""

import pytest

from oncehook.model.lease import Settled, first_lease
from oncehook.model.states import State
from tests.support.events import make_leased


def test_fence_of_a_leased_receipt_is_its_number_and_its_counter() -> None:
    assert make_leased(receipt=7, lease=3).lease_key == (7, 3)


def test_leased_receipt_cannot_be_changed() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        make_leased().attempt = 2  # type: ignore[misc]


def test_settled_attempt_has_no_error_and_no_retry_by_default() -> None:
    settled = Settled(7, 3, State.PROCESSED, "processed")
    assert (settled.after, settled.error, settled.traceback, settled.seconds, settled.crashed) == (
        None, None, None, None, False
    )  # fmt: skip


def test_worker_may_change_the_result_of_an_attempt() -> None:
    settled = Settled(7, 3, State.PROCESSED, "processed")
    settled.status, settled.after = State.RETRYING, 5.0
    assert (settled.status, settled.after) == (State.RETRYING, 5.0)


def test_first_lease_is_random_and_never_zero() -> None:
    leases = {first_lease() for _ in range(1000)}
    assert len(leases) > 990 and min(leases) > 0
