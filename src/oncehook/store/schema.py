"""SQL scripts and statements for the schemas of both databases."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oncehook.store import queries


def migration_script(dialect: str, migrations: Sequence[tuple[int, str, str]]) -> str:
    """Return the SQL that applies and records these migrations in one transaction, as `migrate` does."""
    if not migrations:
        return ""
    sql = queries.load(dialect)
    lines = [f"{sql[name]};" for name in ("begin_migrations", "migration_lock", "create_migrations") if name in sql]
    for number, name, text in migrations:
        record = sql["record_migration"].format(number=number, name=name)
        lines += [f"\n-- {number:03d}_{name}\n{text}", f"{record};"]
    return "\n".join([*lines, "COMMIT;\n"])


def move_statements(sql: Mapping[str, str], columns: Iterable[Any]) -> list[str]:
    """Return one statement per table that moves the times in these (table, column) pairs back."""
    tables: dict[str, list[str]] = {}
    for table, column in columns:
        tables.setdefault(table, []).append(sql["move_column_back"].format(column=column))
    return [sql["move_table_back"].format(table=table, moves=", ".join(moves)) for table, moves in tables.items()]


def split_statements(sql: str) -> list[str]:
    """Split a migration of SQLite into statements, because `executescript` would commit before the first."""
    statements, current = [], ""
    for line in sql.splitlines(keepends=True):
        current += line
        if sqlite3.complete_statement(current):
            statements.append(current)
            current = ""
    return statements
