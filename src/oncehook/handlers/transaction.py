"""Types that annotate a handler's `tx`: the methods that `tx` has on both databases.

On PostgreSQL the native `tx` is the asyncpg connection and also has its other methods. With a SQLAlchemy engine, `tx`
is an `AsyncSession` or a `Session`. Placeholders are those of the database: `?` on SQLite, `$1` on PostgreSQL.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol


class Row(Protocol):
    """A row of a query result. It maps column names to values, in the order of the columns.

    name = row["name"]
    """

    def __getitem__(self, name: str, /) -> Any: ...

    def get(self, name: str, default: Any = None, /) -> Any: ...

    def keys(self) -> Iterable[str]: ...

    def values(self) -> Iterable[Any]: ...

    def items(self) -> Iterable[tuple[str, Any]]: ...


class AsyncTransaction(Protocol):
    """The `tx` of an `async def` handler: a database transaction that commits together with the processed status.

    Everything that the handler writes through `tx` commits with the status, or not at all. If the handler raises, it is
    rolled back. Placeholders are those of the database: `?` on SQLite, `$1` on PostgreSQL.

        async def invoice_paid(event: Event, tx: AsyncTransaction) -> None:
            await tx.execute("UPDATE invoices SET paid = true WHERE id = $1", event.object_id)
    """

    async def execute(self, sql: str, /, *args: Any) -> int | str:
        """Run a statement. Returns the number of changed rows on SQLite, and the command tag on PostgreSQL."""
        ...

    async def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Run a statement once for each row of arguments."""
        ...

    async def fetch(self, sql: str, /, *args: Any) -> Sequence[Row]:
        """Run a query and return all of its rows."""
        ...

    async def fetchrow(self, sql: str, /, *args: Any) -> Row | None:
        """Run a query and return its first row, or None if there is none."""
        ...

    async def fetchval(self, sql: str, /, *args: Any) -> Any:
        """Run a query and return the first value of its first row, or None if there is no row."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """Return a savepoint: `async with tx.transaction():` rolls back only its own block if the block raises."""
        ...


class SyncTransaction(Protocol):
    """The `tx` of a plain `def` handler, which runs in a thread: like `AsyncTransaction`, without `await`.

    def invoice_paid(event: SyncEvent, tx: SyncTransaction) -> None:
        tx.execute("UPDATE invoices SET paid = true WHERE id = $1", event.object_id)
    """

    def execute(self, sql: str, /, *args: Any) -> int | str:
        """Run a statement. Returns the number of changed rows on SQLite, and the command tag on PostgreSQL."""
        ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Run a statement once for each row of arguments."""
        ...

    def fetch(self, sql: str, /, *args: Any) -> Sequence[Row]:
        """Run a query and return all of its rows."""
        ...

    def fetchrow(self, sql: str, /, *args: Any) -> Row | None:
        """Run a query and return its first row, or None if there is none."""
        ...

    def fetchval(self, sql: str, /, *args: Any) -> Any:
        """Run a query and return the first value of its first row, or None if there is no row."""
        ...

    def transaction(self) -> AbstractContextManager[Any]:
        """Return a savepoint: `with tx.transaction():` rolls back only its own block if the block raises."""
        ...
