"""The tables of a PostgreSQL database."""

from oncehook.store import queries
from oncehook.store.postgres.pool import PostgresPool, partition_name
from oncehook.store.schema import move_statements


class PostgresSchemaStore:
    """Implements `SchemaStore`."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    async def pending(self) -> list[tuple[int, str, str]]:
        return await self._pool.pending_migrations()

    async def migrate(self) -> list[str]:
        return await self._pool.migrate()

    async def move_times_back(self, seconds: float) -> None:
        sql = self._pool.sql
        async with self._pool.connection() as connection, connection.transaction():
            for statement in move_statements(sql, await connection.fetch(sql["time_columns"])):
                await connection.execute(queries.number_parameters(statement)[0], seconds)
            existing = await self._pool.partitions(connection)
            for (day,) in await connection.fetch(sql["days_received"]):
                if partition_name(day) not in existing:
                    await self._pool.create_partition(connection, day)
            await connection.execute(sql["move_payloads"])  # a payload is read by the day of its receipt
