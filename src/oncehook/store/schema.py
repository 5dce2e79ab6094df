"""What both databases share about their tables."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from oncehook.store import queries


def migration_script(dialect: str, migrations: Sequence[tuple[int, str, str]]) -> str:
    """The SQL that applies and records these migrations in one transaction, as `migrate` does; empty without any."""
    if not migrations:
        return ""
    sql = queries.load(dialect)
    lines = [f"{sql[name]};" for name in ("begin_migrations", "migration_lock", "create_migrations") if name in sql]
    for number, name, text in migrations:
        record = sql["record_migration"].format(number=number, name=name)
        lines += [f"\n-- {number:03d}_{name}\n{text}", f"{record};"]
    return "\n".join([*lines, "COMMIT;\n"])


def moves(sql: Mapping[str, str], columns: Iterable[Any]) -> list[str]:
    """One statement per table that moves the times in these (table, column) pairs back."""
    tables: dict[str, list[str]] = {}
    for table, column in columns:
        tables.setdefault(table, []).append(sql["moved_back"].format(column=column))
    return [sql["move_back"].format(table=table, moves=", ".join(moves)) for table, moves in tables.items()]
