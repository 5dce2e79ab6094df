"""The rows that the store returns."""

import inspect
from datetime import UTC, datetime

import msgspec
import pytest

from oncehook.model import rows
from oncehook.model.rows import AuditEntry, QueryRow, StoredBody, Time

ROWS = [cls for _, cls in inspect.getmembers(rows, inspect.isclass) if issubclass(cls, msgspec.Struct)]


def test_json_of_a_row_has_its_columns_in_order() -> None:
    entry = AuditEntry(1, "2026-11-15T00:00:00.000000Z", "jane", "replay", {"receipts": 3})
    assert list(entry.as_json().items()) == [
        ("id", 1), ("at", "2026-11-15T00:00:00.000000Z"), ("actor", "jane"), ("action", "replay"),
        ("detail", {"receipts": 3}),
    ]  # fmt: skip


def test_json_keeps_bytes_and_times_as_they_are() -> None:
    now = datetime(2026, 11, 15, tzinfo=UTC)
    assert StoredBody(1, b"{}", "{}", None, "stripe", "", "evt_1").as_json()["body"] == b"{}"
    assert Time(now).as_json() == {"now": now}


@pytest.mark.parametrize("cls", ROWS, ids=lambda cls: cls.__name__)
def test_every_row_is_immutable_and_described(cls: type[msgspec.Struct]) -> None:
    assert cls.__struct_config__.frozen and (cls.__doc__ or "").endswith(".")


def test_equal_rows_are_equal_values() -> None:
    first, same, other = (AuditEntry(number, "now", "jane", "replay", {}) for number in (1, 1, 2))
    assert first == same != other and issubclass(AuditEntry, QueryRow)
