"""The tables of a SQLite file."""

import sqlite3

from oncehook.store import queries
from oncehook.store.schema import move_statements, split_statements
from oncehook.store.sqlite.file import SqliteFile


class SqliteSchemaStore:
    """Implements `SchemaStore`."""

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._sql = file.sql

    async def pending(self) -> list[tuple[int, str, str]]:
        def pending(connection: sqlite3.Connection) -> list[tuple[int, str, str]]:
            try:
                applied = dict(connection.execute(self._sql["applied_migrations"]).fetchall())
            except sqlite3.OperationalError:
                applied = {}
            return queries.pending_migrations("sqlite", applied)

        return await self._file.write(pending)

    async def migrate(self) -> list[str]:
        return await self._file.write(self._migrate)

    def _migrate(self, connection: sqlite3.Connection) -> list[str]:
        connection.execute(self._sql["begin_migrations"])
        connection.execute(self._sql["create_migrations"])
        applied = dict(connection.execute(self._sql["applied_migrations"]).fetchall())
        names = []
        for number, name, sql in queries.pending_migrations("sqlite", applied):
            for statement in split_statements(sql):
                connection.execute(statement)
            connection.execute(self._sql["record_migration"].format(number=number, name=name))
            names.append(f"{number:03d}_{name}")
        connection.execute("COMMIT")
        return names

    async def move_times_back(self, seconds: float) -> None:
        def move(connection: sqlite3.Connection) -> None:
            connection.execute("BEGIN IMMEDIATE")
            for statement in move_statements(self._sql, connection.execute(self._sql["time_columns"]).fetchall()):
                connection.execute(statement, {"seconds": seconds})
            connection.execute("COMMIT")

        await self._file.write(move)
