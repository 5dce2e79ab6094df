"""`advance` lets time pass: it moves every stored time back, and changes no other value."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.providers.expressions import parse_time
from oncehook.testing import (
    advance,
    crash,
    deliver,
    drain,
    replay,
)
from tests.support.events import Rows
from tests.support.work import fail_first_attempts

pytestmark = pytest.mark.anyio


async def test_advance_moves_every_stored_time_and_no_other_value(inbox: Inbox, rows: Rows) -> None:
    fail_first_attempts(inbox, 1)
    answer = await deliver(inbox, "stripe", copies=2)
    await inbox._runtime.reception.duplicates.drain()
    await drain(inbox, later=True)
    await replay(inbox, answer)
    await crash(inbox)
    before = all_values(rows, inbox)
    await advance(inbox, "31d")
    after = all_values(rows, inbox)
    moved = 0
    assert before.keys() == after.keys()
    for position, value in before.items():
        if isinstance(value, datetime):
            assert abs(value - after[position] - timedelta(days=31)) < timedelta(milliseconds=2), position
            moved += 1
        elif position[1] != "day":
            assert after[position] == value, position
    assert moved > 10
    payload = await inbox._runtime.store.receipts.payload(answer.receipt or 0)
    assert payload is not None and answer.sent is not None and payload.body == answer.sent.body


def all_values(rows: Rows, inbox: Inbox) -> dict[tuple[str, str, int], Any]:
    """Every value of every table of the inbox, by table, column and row."""
    names = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if inbox._runtime.settings.database.startswith("postgresql"):
        names = "SELECT relname::text FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"
    values: dict[tuple[str, str, int], Any] = {}
    for (table,) in rows(names):
        if table.startswith("webhook_"):
            columns = columns_of(rows, inbox, table)
            listed = ", ".join(columns)
            for number, row in enumerate(rows(f"SELECT {listed} FROM {table} ORDER BY 1")):
                values |= {(table, name, number): as_time(value) for name, value in zip(columns, row, strict=True)}
    return values


def columns_of(rows: Rows, inbox: Inbox, table: str) -> list[str]:
    sql = f"SELECT name FROM pragma_table_info('{table}')"
    if inbox._runtime.settings.database.startswith("postgresql"):
        sql = f"SELECT attname::text FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0"
    return [name for (name,) in rows(sql)]


def as_time(value: Any) -> Any:
    return parse_time(value) if isinstance(value, str) and value[4:5] == "-" and value.endswith("Z") else value


async def test_every_time_column_has_a_name_that_sqlite_recognizes(inbox: Inbox, rows: Rows) -> None:
    if inbox._runtime.settings.database.startswith("postgresql"):
        columns = [row["column_name"] for row in await inbox._runtime.store.database.executor.read("time_columns")]
        assert [name for name in columns if not (name == "at" or name.endswith(("_at", "_until")))] == []
