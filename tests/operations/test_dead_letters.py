"""Dead letters are grouped by their error, whatever ids and numbers it contains. No database."""

from typing import Any

import pytest

from oncehook.model.statistics import DeadLetters
from oncehook.operations.dead_letters import common_error, error_pattern, group_by_error

TIME = "2026-11-16T03:00:0{}.000000Z"


def dead_letters(number: int, error: str | None, **changes: Any) -> DeadLetters:
    """A row of the store: one error with its number of receipts."""
    time = TIME.format(number)
    values: dict[str, Any] = {
        "source": "stripe", "consumer": "main", "handler": "app.paid", "last_error": error, "receipts": 1,
        "first_received_at": time, "last_received_at": time, "first_failed_at": time, "last_failed_at": time,
        "last_receipt": number,
    }  # fmt: skip
    return DeadLetters(**{**values, **changes})


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        ("KeyError: 'in_1'", "KeyError: …"),
        ('no customer "Jane" in row 17', "no customer … in row …"),
        ("timeout after 30s", "timeout after …"),
        ("Fail: no such customer", "Fail: no such customer"),
        (None, ""),
    ],
)
def test_error_pattern_replaces_ids_numbers_and_quoted_texts(error: str | None, pattern: str) -> None:
    assert error_pattern(error) == pattern


def test_common_error_keeps_the_parts_that_all_errors_share() -> None:
    assert common_error(["row 7 of 'a'", "row 8 of 'a'"]) == "row … of 'a'"
    assert common_error(["KeyError: 'x'"]) == "KeyError: 'x'"


def test_common_error_of_errors_with_different_numbers_of_parts_is_their_pattern() -> None:
    assert common_error(["a 1", "a 1 2"]) == "a …"


def test_errors_with_the_same_pattern_are_one_group_with_the_newest_error() -> None:
    (group,) = group_by_error([dead_letters(2, "KeyError: 'b'"), dead_letters(1, "KeyError: 'a'", receipts=4)])
    assert (group["receipts"], group["error"], group["last_error"]) == (5, "KeyError: …", "KeyError: 'b'")
    assert (group["first_failed_at"], group["last_failed_at"]) == (TIME.format(1), TIME.format(2))
    assert (group["last_receipt"], group["last_received_at"]) == (2, TIME.format(2))


def test_sources_and_handlers_are_separate_groups_and_the_largest_is_first() -> None:
    rows = [
        dead_letters(1, "Fail: x"),
        dead_letters(2, "Fail: x", source="github"),
        dead_letters(3, "Fail: x", handler="app.voided", receipts=9),
    ]
    groups = group_by_error(rows)
    assert [(group["source"], group["handler"], group["receipts"]) for group in groups] == [
        ("stripe", "app.voided", 9), ("stripe", "app.paid", 1), ("github", "app.paid", 1)
    ]  # fmt: skip


def test_consumers_have_their_own_groups() -> None:
    groups = group_by_error([dead_letters(1, "E: x"), dead_letters(2, "E: x", consumer="ledger")])
    assert [(group["consumer"], group["receipts"]) for group in groups] == [("main", 1), ("ledger", 1)]
