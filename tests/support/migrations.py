"""Migrations of a later release, for tests."""

from collections.abc import Callable

from oncehook.store import queries

AddMigration = Callable[[tuple[int, str, str]], None]
"""The fixture `add_migration`: adds a migration to those of this version."""

APPLIED = "SELECT number, name FROM webhook_migrations ORDER BY number"
SECOND = (2, "notes", "ALTER TABLE webhook_receipts ADD COLUMN note text;\nCREATE TABLE webhook_notes (id integer);\n")
BROKEN = (2, "broken", "CREATE TABLE webhook_notes (id integer);\nINSERT INTO webhook_nowhere VALUES (1);\n")
"""A migration whose second statement fails."""


def migration_names(database: str) -> list[tuple[int, str]]:
    """Number and name of every migration of the database's dialect."""
    dialect = database.partition(":")[0].removesuffix("ql")
    return [(number, name) for number, name, _ in queries.migrations(dialect)]
