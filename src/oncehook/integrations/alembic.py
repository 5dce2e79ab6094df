"""Alembic: autogenerate leaves Oncehook's own tables alone.

In the `env.py` of your migrations, in both places that call it:

    from oncehook.integrations.alembic import include_name

    context.configure(connection=connection, target_metadata=target_metadata, include_name=include_name)
"""

import re
from collections.abc import Mapping
from functools import cache

from oncehook.store import queries

_NAMED = re.compile(r"CREATE TABLE\s+(webhook_\w+)")
_DAY = re.compile(r"webhook_payloads_[0-9]{8}")


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Whether Alembic is to look at this: at everything but the tables of the inbox and what belongs to them.

    Those have migrations of their own, which a start or `oncehook migrate` applies.
    """
    table = name if type_ == "table" else parent_names.get("table_name")
    return table is None or not is_ours(table)


def is_ours(table: str) -> bool:
    """Whether the inbox made this table; not whether its name looks like it."""
    return table in _tables() or _DAY.fullmatch(table) is not None


@cache
def _tables() -> frozenset[str]:
    written = [sql for kind in ("sqlite", "postgres") for _, _, sql in queries.migrations(kind)]
    return frozenset(["webhook_migrations", *(name for sql in written for name in _NAMED.findall(sql))])
