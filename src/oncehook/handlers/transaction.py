"""The types of a handler's `tx`, for annotations: what both databases have.

On PostgreSQL the native `tx` is the asyncpg connection and has the rest of its methods too; with a SQLAlchemy engine,
`tx` is an `AsyncSession` or a `Session`. Placeholders are the database's own: `?` on SQLite, `$1` on PostgreSQL.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Protocol


class Row(Protocol):
    """A row of a query: its values by column name, in the order of the columns."""

    def __getitem__(self, name: str, /) -> Any: ...

    def get(self, name: str, default: Any = None, /) -> Any: ...

    def keys(self) -> Iterable[str]: ...

    def values(self) -> Iterable[Any]: ...

    def items(self) -> Iterable[tuple[str, Any]]: ...


class AsyncTransaction(Protocol):
    """The `tx` of an `async def` handler."""

    async def execute(self, sql: str, /, *args: Any) -> int | str:
        """Run a statement. Returns the number of changed rows on SQLite, and the command tag on PostgreSQL."""
        ...

    async def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Run a statement once for each row of arguments."""
        ...

    async def fetch(self, sql: str, /, *args: Any) -> Sequence[Row]:
        """Run a query. Returns all of its rows."""
        ...

    async def fetchrow(self, sql: str, /, *args: Any) -> Row | None:
        """Run a query. Returns its first row, or None."""
        ...

    async def fetchval(self, sql: str, /, *args: Any) -> Any:
        """Run a query. Returns the first value of its first row, or None."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A savepoint: `async with tx.transaction():` undoes only its own block when that fails."""
        ...


class SyncTransaction(Protocol):
    """The `tx` of a plain `def` handler, which runs in a thread."""

    def execute(self, sql: str, /, *args: Any) -> int | str:
        """Run a statement. Returns the number of changed rows on SQLite, and the command tag on PostgreSQL."""
        ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Run a statement once for each row of arguments."""
        ...

    def fetch(self, sql: str, /, *args: Any) -> Sequence[Row]:
        """Run a query. Returns all of its rows."""
        ...

    def fetchrow(self, sql: str, /, *args: Any) -> Row | None:
        """Run a query. Returns its first row, or None."""
        ...

    def fetchval(self, sql: str, /, *args: Any) -> Any:
        """Run a query. Returns the first value of its first row, or None."""
        ...

    def transaction(self) -> AbstractContextManager[Any]:
        """A savepoint: `with tx.transaction():` undoes only its own block when that fails."""
        ...
