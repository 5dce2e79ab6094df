"""Alembic: exclude Oncehook's tables from autogenerate.

In the `env.py` of your migrations, pass `include_name` to both calls of `context.configure`:

    from oncehook.integrations.alembic import include_name

    context.configure(connection=connection, target_metadata=target_metadata, include_name=include_name)
"""

import re
from collections.abc import Mapping
from functools import cache

from oncehook.store import queries

_CREATED_TABLE = re.compile(r"CREATE TABLE\s+(webhook_\w+)")
_DAY_PARTITION = re.compile(r"webhook_payloads_[0-9]{8}")


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Return whether Alembic compares this name: False for the tables of the inbox, and their columns and indexes.

    Oncehook migrates its tables itself, at start or with `oncehook migrate`.
    """
    table = name if type_ == "table" else parent_names.get("table_name")
    return table is None or not is_ours(table)


def is_ours(table: str) -> bool:
    """Return whether the migrations of the inbox create this table. A similar name is not enough."""
    return table in _tables() or _DAY_PARTITION.fullmatch(table) is not None


@cache
def _tables() -> frozenset[str]:
    scripts = [sql for kind in ("sqlite", "postgres") for _, _, sql in queries.migrations(kind)]
    return frozenset(["webhook_migrations", *(name for sql in scripts for name in _CREATED_TABLE.findall(sql))])
