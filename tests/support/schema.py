"""The schema as a database reports it."""

from tests.support.servers import run_sql


def column_types(database: str, table: str) -> dict[str, str]:
    """The type of every column as in docs/schema.md: without a length, and a domain as its base type."""
    if database.startswith("sqlite"):
        return {row[1]: row[2].lower() for row in run_sql(database, f"PRAGMA table_info({table})")}
    wanted = f"SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{table}'"
    short = {"timestamp with time zone": "timestamptz", "double precision": "double"}
    return {column: short.get(type_, type_) for column, type_ in run_sql(database, wanted)}
