"""`oncehook migrate`: apply and print migrations."""

import sqlite3
from pathlib import Path

import pytest

from tests.support.command_line import Run
from tests.support.events import Rows


@pytest.mark.without_schema
def test_migrate_prints_the_sql_applies_it_and_then_has_nothing_to_do(
    run: Run, config: Path, database: str, rows: Rows
) -> None:
    printed = run("migrate", "--sql")
    assert printed.code == 0
    assert "-- 001_" in printed.out and "CREATE TABLE webhook_receipts" in printed.out
    if database.startswith("sqlite"):
        assert not Path(database.removeprefix("sqlite:///")).exists()
    else:
        assert rows("SELECT count(*) FROM pg_class WHERE relname LIKE 'webhook%'") == [(0,)]
    applied = run("migrate")
    assert applied.code == 0 and applied.out.startswith("applied 001_")
    again = run("migrate")
    assert (again.code, again.out) == (0, "the schema is up to date\n")
    assert run("migrate", "--sql").out == ""
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]


@pytest.mark.without_schema
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_printed_sql_makes_the_schema_that_migrate_would_make(
    run: Run, config: Path, rows: Rows, database: str
) -> None:
    """After the printed script ran, `migrate` has nothing left to do."""
    script = run("migrate", "--sql").out
    with sqlite3.connect(database.removeprefix("sqlite:///")) as connection:
        connection.executescript(script)
    connection.close()
    assert run("migrate").out == "the schema is up to date\n"
    assert rows("SELECT count(*) FROM webhook_receipts") == [(0,)]
