"""SQL from `store/sql/<dialect>/`: one file per area of the store, with the same query names in every dialect.

A query begins with `-- name: NAME`. Parameters are written `:name`. A line that ends in `--? name` is part of the query
only if that parameter is passed, so each condition of a filter stands where it applies. `{> NAME}` includes the query
of that name as a fragment.
"""

import json
import re
from collections.abc import Mapping, Set
from functools import cache
from pathlib import Path

from oncehook.model.errors import ConfigurationError

SQL = Path(__file__).parent / "sql"
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_OPTIONAL = re.compile(r"--\?\s*(\w+)\s*$")
_INCLUDED = re.compile(r"\{> (\w+)\}")
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)\b")


@cache
def load(dialect: str) -> dict[str, str]:
    """Return the queries of a dialect by name."""
    bodies: dict[str, str] = {}
    for file in (SQL / dialect).iterdir():
        if file.name.endswith(".sql"):
            _, *parts = _NAME.split(file.read_text("utf-8"))
            for name, body in zip(parts[::2], parts[1::2], strict=True):
                assert name not in bodies, f"{file.name} defines {name} again"
                bodies[name] = body.strip()
    whole = {name: _INCLUDED.sub(lambda part: _COMMENT.sub("", bodies[part[1]]), body) for name, body in bodies.items()}
    fragments = {name for body in bodies.values() for name in _INCLUDED.findall(body)}
    return {name: body for name, body in whole.items() if name not in fragments}


def with_parameters(sql: str, parameters: Set[str]) -> str:
    """Return the query with the optional lines for these parameters, and without the other optional lines."""
    lines = []
    for line in sql.splitlines():
        optional = _OPTIONAL.search(line)
        if optional is None:
            lines.append(line)
        elif optional[1] in parameters:
            lines.append(line[: optional.start()].rstrip())
    return "\n".join(lines)


@cache
def statement(dialect: str, name: str, parameters: frozenset[str]) -> str:
    """Return a query of a dialect with the optional lines for these parameters."""
    return with_parameters(load(dialect)[name], parameters)


@cache
def number_parameters(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return the query with `$1, $2 …` in place of `:name`, and the names in that order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return _PARAMETER.sub(number, sql), tuple(names)


@cache
def format_parameters(sql: str) -> str:
    """Return the query with `%(name)s` in place of `:name`, as psycopg expects it."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


@cache
def columns() -> dict[str, dict[str, dict[str, str]]]:
    """Return the columns of every table and view, each with its type in both dialects and its meaning."""
    tables: dict[str, dict[str, dict[str, str]]] = json.loads((SQL / "columns.json").read_text("utf-8"))
    return tables


@cache
def migrations(dialect: str) -> tuple[tuple[int, str, str], ...]:
    """Return (number, name, SQL) of every migration of a dialect, in order."""
    folder = SQL / dialect / "migrations"
    parsed = []
    for file in folder.iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        parsed.append((int(number), name, file.read_text("utf-8")))
    return tuple(sorted(parsed))


def pending_migrations(dialect: str, applied: Mapping[int, str]) -> list[tuple[int, str, str]]:
    """Return the migrations that are not in `applied`, a mapping of numbers to names.

    A database may have later migrations: a newer release may use it at the same time.
    """
    known = migrations(dialect)
    for number, name, _ in known:
        if applied.get(number, name) != name:
            raise ConfigurationError(
                f"the database's schema is from before the first release: its migration {number:03d} is "
                f"{applied[number]}, expected {name}. It cannot be upgraded: recreate the database, or set database to "
                "a new one"
            )
    return [migration for migration in known if migration[0] not in applied]
