"""How the shared verbs run their statements. Each database implements `Executor` once.

A statement is named, not written out: its SQL is in `store/sql/<dialect>/` under the same name for every database.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from oncehook.model.errors import StoreUnavailable
from oncehook.store.dialect import Dialect

T = TypeVar("T")
NOTHING: Mapping[str, Any] = {}

Run = Callable[[str, Mapping[str, Any]], Awaitable[list[Any]]]
"""Runs a named statement inside a transaction and returns its rows."""

Work = Callable[[Run], Coroutine[Any, Any, T]]
"""The statements of one transaction. It may await `run`, and nothing else."""


class Executor(Protocol):
    """Runs statements. Rows can be read by position and by column name. Errors are StoreUnavailable or RowRefused."""

    dialect: Dialect

    async def read(self, name: str, given: Mapping[str, Any] = NOTHING) -> list[Any]:
        """Return the rows of a statement that only reads."""

    async def scan(self, name: str, given: Mapping[str, Any] = NOTHING) -> list[Any]:
        """Same as `read`, for a statement that may visit a whole table and take minutes."""

    async def write(self, name: str, given: Mapping[str, Any] = NOTHING) -> list[Any]:
        """Run one statement, commit it, and return its rows."""

    async def transaction(self, work: Work[T]) -> T:
        """Run `work` in a transaction: when this returns, all its statements are committed. If it raises, none is."""

    def unavailable(self, error: BaseException) -> StoreUnavailable | None:
        """What a driver's error means to callers, or None if it is not a driver's error."""


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in this thread, without an event loop. It must not wait for anything."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a transaction may await its own statements only")
