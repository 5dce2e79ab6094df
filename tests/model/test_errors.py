"""The exceptions that several packages share."""

import inspect

import pytest

from oncehook.model import errors
from oncehook.model.errors import (
    IntakeFull,
    KeyTaken,
    OncehookError,
    Rejected,
    RowRefused,
    SendFailed,
    SendRefused,
    StoreUnavailable,
    Unavailable,
)


def test_every_exception_is_an_oncehook_error() -> None:
    classes = [value for _, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Exception)]
    assert len(classes) > 8 and all(issubclass(cls, OncehookError) for cls in classes)


def test_docstring_of_the_module_draws_every_exception() -> None:
    names = [name for name, value in inspect.getmembers(errors, inspect.isclass) if issubclass(value, Exception)]
    assert [name for name in names if name not in (errors.__doc__ or "")] == []


@pytest.mark.parametrize("error", [IntakeFull, StoreUnavailable, RowRefused, KeyTaken])
def test_sender_may_retry_after_five_seconds_unless_the_error_says_otherwise(error: type[Unavailable]) -> None:
    assert error("the disk is full").retry_after == 5
    later = error("the disk is full", retry_after=60)
    assert (later.retry_after, later.detail, str(later)) == (60, "the disk is full", "the disk is full")


def test_rejection_has_a_reason_for_the_sender_and_a_detail_for_the_log() -> None:
    rejected = Rejected("bad_signature", "no signature matches")
    assert (rejected.reason, rejected.detail) == ("bad_signature", "no signature matches")
    assert str(rejected) == "bad_signature: no signature matches"


def test_request_that_was_not_sent_is_a_failed_request() -> None:
    assert issubclass(SendRefused, SendFailed)
