"""Rows of either driver as structs."""

import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pytest

from oncehook.store.decode import decode

MOMENT = datetime(2026, 11, 15, 3, 4, 5, 678901, tzinfo=UTC)


class Row(msgspec.Struct):
    name: str
    at: datetime | None = None
    text_at: str | None = None
    is_on: bool = False


@dataclass
class Pair:
    left: int
    right: str


def test_columns_become_fields_by_name() -> None:
    assert decode([{"right": "b", "left": 1}], Pair) == [Pair(1, "b")]


def test_datetime_stays_a_datetime_for_a_datetime_field() -> None:
    assert decode([{"name": "a", "at": MOMENT}], Row) == [Row("a", MOMENT)]


def test_datetime_becomes_text_for_a_text_field() -> None:
    (row,) = decode([{"name": "a", "text_at": MOMENT}], Row)
    assert row.text_at == "2026-11-15T03:04:05.678901Z"


def test_text_of_sqlite_becomes_a_datetime_and_an_integer_a_boolean() -> None:
    (row,) = decode([{"name": "a", "at": "2026-11-15T03:04:05.678901Z", "is_on": 1}], Row)
    assert (row.at, row.is_on) == (MOMENT, True)


def test_row_of_sqlite3_is_decoded() -> None:
    connection = sqlite3.connect(":memory:")
    connection.row_factory = sqlite3.Row
    try:
        assert decode(connection.execute("SELECT 7 AS left, 'x' AS right"), Pair) == [Pair(7, "x")]
    finally:
        connection.close()


def test_missing_column_is_an_error() -> None:
    with pytest.raises(msgspec.ValidationError, match="right"):
        decode([{"left": 1}], Pair)
