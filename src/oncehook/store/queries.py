"""SQL out of `store/sql/<dialect>/`: one plain file per area of the store, the same query names in every dialect.

A query begins with `-- name: NAME`. Parameters are `:name`. A line that ends in `--? name` is in the query
only when that parameter is given, so a filter is written where it is used. `{> NAME}`
stands for the fragment of that name.
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
    """Every query of a dialect by its name."""
    found: dict[str, str] = {}
    for file in (SQL / dialect).iterdir():
        if file.name.endswith(".sql"):
            _, *parts = _NAME.split(file.read_text("utf-8"))
            for name, body in zip(parts[::2], parts[1::2], strict=True):
                assert name not in found, f"{file.name} names {name} again"
                found[name] = body.strip()
    whole = {name: _INCLUDED.sub(lambda part: _COMMENT.sub("", found[part[1]]), body) for name, body in found.items()}
    fragments = {name for body in found.values() for name in _INCLUDED.findall(body)}
    return {name: body for name, body in whole.items() if name not in fragments}


def with_given(sql: str, given: Set[str]) -> str:
    """The query with the optional lines whose parameter is given, and without the others."""
    lines = []
    for line in sql.splitlines():
        optional = _OPTIONAL.search(line)
        if optional is None:
            lines.append(line)
        elif optional[1] in given:
            lines.append(line[: optional.start()].rstrip())
    return "\n".join(lines)


@cache
def statement(dialect: str, name: str, given: frozenset[str]) -> str:
    """A query of a dialect with the optional lines of these parameters."""
    return with_given(load(dialect)[name], given)


@cache
def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """The query with `$1, $2 …` in place of `:name`, and the names in that order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return _PARAMETER.sub(number, sql), tuple(names)


@cache
def columns() -> dict[str, dict[str, dict[str, str]]]:
    """Of every table and view: its columns, each with its type in both dialects and its meaning."""
    found: dict[str, dict[str, dict[str, str]]] = json.loads((SQL / "columns.json").read_text("utf-8"))
    return found


@cache
def migrations(dialect: str) -> tuple[tuple[int, str, str], ...]:
    """(number, name, SQL) of every migration of a dialect, in order."""
    folder = SQL / dialect / "migrations"
    found = []
    for file in folder.iterdir():
        number, _, name = file.name.removesuffix(".sql").partition("_")
        found.append((int(number), name, file.read_text("utf-8")))
    return tuple(sorted(found))


def pending_migrations(dialect: str, applied: Mapping[int, str]) -> list[tuple[int, str, str]]:
    """The migrations that a database still lacks, by the numbers and names of those that it has.

    Migrations beyond the last one here belong to a newer release, which this one can run beside.
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
