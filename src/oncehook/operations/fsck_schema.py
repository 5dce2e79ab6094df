"""Compares the schema of a database with the migrations of this release."""

import hashlib
import re

from oncehook.store import queries
from oncehook.store.rows import FsckRow
from oncehook.store.store import Store

_CREATED = re.compile(
    r"^\s*CREATE (?:UNIQUE )?(?:TABLE|INDEX|VIEW|TRIGGER|DOMAIN|SEQUENCE|FUNCTION|PROCEDURE) (webhook_\w+)",
    re.MULTILINE,
)
_NAMED = re.compile(r"^\s*CONSTRAINT (webhook_\w+) (?:UNIQUE|PRIMARY KEY)", re.MULTILINE)


def expected_objects(dialect: str) -> set[str]:
    """Return the names of everything that the migrations of a dialect create."""
    names: set[str] = {"webhook_migrations"}
    for _, _, text in queries.migrations(dialect):
        names.update(_CREATED.findall(text))
        if dialect != "sqlite":  # which gives the index of a constraint its own name
            names.update(_NAMED.findall(text))
    return names


async def schema_differences(store: Store) -> tuple[int, list[FsckRow]]:
    """Return the number of compared objects and columns, and a row for each that is missing or not in force."""
    dialect = store.dialect.name
    objects = await store.fsck.objects()
    present, invalid = {row.name for row in objects}, {row.name for row in objects if not row.is_valid}
    expected = expected_objects(dialect)
    missing = [f"{name} is missing" for name in sorted(expected - present)]
    missing += [f"{name} is not valid or is disabled" for name in sorted(invalid)]
    columns = {(row.name, row.part) for row in await store.fsck.columns()}
    wanted = {
        (table, column)
        for table, about in queries.columns().items()
        for column, types in about.items()
        if types[dialect] and table in present
    }
    missing += [f"column {column} of {table} is missing" for table, column in sorted(wanted - columns)]
    missing += changed_files()
    return len(expected) + len(wanted), [FsckRow(text, None, text) for text in missing]


def changed_files() -> list[str]:
    """Return a sentence for each migration of this installation that is not the released file."""
    recorded = (line.split("  ") for line in (queries.SQL / "migrations.sha256").read_text("utf-8").splitlines())
    changed = [
        path for digest, path in recorded if hashlib.sha256((queries.SQL / path).read_bytes()).hexdigest() != digest
    ]
    return [f"the file {path} of this installation was changed" for path in changed]
