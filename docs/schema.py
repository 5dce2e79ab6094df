"""The tables and columns of the schema, read from the migrations, with the meanings of docs/columns.py."""

import json
import re
import sqlite3

from docs.columns import MEANING
from docs.markdown import table
from oncehook.store import queries


def columns_json() -> str:
    """The tables and columns as JSON, for `oncehook schema --json`."""
    sqlite, postgres = _sqlite_columns(), _postgres_columns()
    tables = {
        name: {
            column: {
                "postgres": postgres[name].get(column, ""),
                "sqlite": sqlite[name].get(column, "").lower(),
                "meaning": meaning[column],
            }
            for column in dict.fromkeys([*postgres[name], *sqlite[name]])
        }
        for name, meaning in MEANING.items()
    }
    return json.dumps(tables, indent=1, ensure_ascii=False) + "\n"


def tables() -> str:
    """The tables and columns in Markdown, for docs/schema.md."""
    sqlite, postgres = _sqlite_columns(), _postgres_columns()
    parts = []
    for name, meaning in MEANING.items():
        columns = list(dict.fromkeys([*postgres[name], *sqlite[name]]))
        rows = [(f"`{c}`", postgres[name].get(c, ""), sqlite[name].get(c, "").lower(), meaning[c]) for c in columns]
        parts.append(f"### {name}\n\n" + table(("column", "PostgreSQL", "SQLite", "meaning"), rows))
    return "\n\n".join(parts)


def _sqlite_columns() -> dict[str, dict[str, str]]:
    """Return the columns that SQLite reports after the migrations have run."""
    connection = sqlite3.connect(":memory:")
    for _, _, sql in queries.migrations("sqlite"):
        connection.executescript(sql)
    columns = {}
    for name in MEANING:
        columns[name] = {row[1]: row[2] for row in connection.execute(f"PRAGMA table_info({name})")}
    connection.close()
    return columns


def _postgres_columns() -> dict[str, dict[str, str]]:
    """Return the columns that the migrations define. A domain is replaced by its base type."""
    sql = "\n".join(text for _, _, text in queries.migrations("postgres"))
    domains = dict(re.findall(r"CREATE DOMAIN (\w+) AS (\w+)", sql))
    columns: dict[str, dict[str, str]] = {}
    for name, body in re.findall(r"CREATE TABLE (\w+) \(\n(.*?)\n\)", sql, re.DOTALL):
        columns[name] = dict(re.findall(r"^    ([a-z_]+) +([a-z_]+)", body, re.MULTILINE))
    for name, body in re.findall(r"ALTER TABLE (\w+)\s+(.*?);\n", sql, re.DOTALL):
        columns[name] |= dict(re.findall(r"ADD COLUMN ([a-z_]+) +([a-z_]+)", body))
    for name, body in re.findall(r"CREATE VIEW (\w+) AS\n(.*?);\n", sql, re.DOTALL):
        columns[name] = _view_columns(name, body, columns)
    return {table: {c: domains.get(t, t) for c, t in types.items()} for table, types in columns.items()}


def _view_columns(view: str, body: str, tables: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return the columns of a view. If several tables have a column, its type is that of the first table."""
    types: dict[str, str] = {}
    for name in reversed(re.findall(r"(?:FROM|JOIN) (\w+)", body)):
        types |= tables[name]
    types |= {alias: types[column] for column, alias in re.findall(r"\.(\w+) AS (\w+)", body)}
    return {column: types[column] for column in MEANING[view]}
