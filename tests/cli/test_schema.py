"""`oncehook schema`: SQL that creates the tables, and the columns of a database."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from oncehook import Inbox
from tests.support.command_line import Run
from tests.support.schema import column_types


def test_the_printed_sql_creates_the_tables(run: Run, in_folder: Path) -> None:
    (in_folder / "oncehook.toml").write_text("")
    printed = run("schema")
    assert printed.code == 0 and not (in_folder / "oncehook.db").exists()
    connection = sqlite3.connect(":memory:")
    connection.executescript(printed.out)
    made = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'webhook%'")}
    connection.close()
    assert {"webhook_receipts", "webhook_dlq"} <= made
    assert "timestamptz" in run("schema", "--dialect", "postgres").out


@pytest.mark.parametrize("table", ["webhook_receipts", "webhook_pauses", "webhook_dlq", "webhook_attempts"])
def test_the_listed_columns_exist_in_the_database(
    run: Run, in_folder: Path, database: str, make_inbox: Callable[..., Inbox], table: str
) -> None:
    async def make() -> None:
        async with make_inbox().lifespan():
            pass

    (in_folder / "oncehook.toml").write_text(f'database = "{database}"\n')
    asyncio.run(make())
    lines = run("schema", table, "--json").lines
    assert sorted(line["column"] for line in lines) == sorted(column_types(database, table))
    assert all(line["type"] and line["table"] == table for line in lines)


def test_bad_usage_is_reported_with_exit_code_2(run: Run, in_folder: Path) -> None:
    (in_folder / "oncehook.toml").write_text("")
    assert "there is no table webhook_nothing" in run("schema", "webhook_nothing", "--json").error
    assert run("schema", "webhook_receipts").code == 2
