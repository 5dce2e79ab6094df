"""Time for tests, without waiting for it.

An inbox lives by its database's clock, which no test can turn. So everything that is recorded is moved back instead: to
every query, which stays exactly the one of production, that is as if so much time had passed. It holds for each process
and each connection on that database, and costs nothing where it is not used.
"""

from typing import Any

from oncehook.inbox import Inbox
from oncehook.model.values import duration
from oncehook.store import queries
from oncehook.testing.door import NOT_RUNNING


async def advance(inbox: Inbox, by: Any) -> None:
    """Let time pass for an inbox: "90s", "2h", "31d", or seconds. Retries come due, leases run out, receipts age.

    Every time in the inbox's tables moves back by so much, those that a sender wrote too; the process's own clock, by
    which signatures are checked, and your own tables stay. Nothing may be at work meanwhile.
    """
    if not inbox._runtime.is_running:
        raise RuntimeError(NOT_RUNNING)
    seconds = duration(by)
    store: Any = inbox._runtime.store  # what is below the protocol is known here, and only here
    if inbox._runtime.settings.database.startswith("sqlite:"):
        await store.write(lambda connection: _move_in_sqlite(connection, store.sql, seconds))
    else:
        async with store.connection() as connection, connection.transaction():
            await _move_in_postgres(connection, store, seconds)
    await inbox.email.rebuild()  # the order of facts has their times in it


def _moves(sql: dict[str, str], columns: list[Any]) -> list[str]:
    """One statement for each table."""
    tables: dict[str, list[str]] = {}
    for table, column in columns:
        tables.setdefault(table, []).append(sql["moved_back"].format(column=column))
    return [sql["move_back"].format(table=table, moves=", ".join(moves)) for table, moves in tables.items()]


def _move_in_sqlite(connection: Any, sql: dict[str, str], seconds: float) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in _moves(sql, connection.execute(sql["time_columns"]).fetchall()):
        connection.execute(statement, {"seconds": seconds})
    connection.execute("COMMIT")


async def _move_in_postgres(connection: Any, store: Any, seconds: float) -> None:
    for statement in _moves(store.sql, await connection.fetch(store.sql["time_columns"])):
        await connection.execute(queries.numbered(statement)[0], seconds)
    there = await store._partitions(connection)
    for (day,) in await connection.fetch(store.sql["days_received"]):
        if f"webhook_payloads_{day:%Y%m%d}" not in there:
            await store._make_partition(connection, day)
    await connection.execute(store.sql["move_payloads"])  # a payload is found by the day of its receipt
