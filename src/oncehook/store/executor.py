"""How the shared store classes run their statements. Each database implements `Executor`.

Statements are run by name. Their SQL is in `store/sql/<dialect>/`, under the same names for every database.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from oncehook.model.errors import StoreUnavailable
from oncehook.store.dialect import Dialect

T = TypeVar("T")
NO_PARAMETERS: Mapping[str, Any] = {}

Run = Callable[[str, Mapping[str, Any]], Awaitable[list[Any]]]
"""Runs a named statement inside a transaction and returns its rows."""

Work = Callable[[Run], Coroutine[Any, Any, T]]
"""Runs the statements of one transaction. It must await nothing but `run`."""


class Executor(Protocol):
    """Runs statements. Rows can be read by position or column name. Raises StoreUnavailable or RowRefused."""

    dialect: Dialect

    async def read(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
        """Run a statement that only reads, and return its rows."""

    async def scan(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
        """Same as `read`, with a long timeout: for statements that may read a whole table."""

    async def write(self, name: str, parameters: Mapping[str, Any] = NO_PARAMETERS) -> list[Any]:
        """Run one statement, commit it, and return its rows."""

    async def transaction(self, work: Work[T]) -> T:
        """Run `work` in a transaction and commit it. If `work` raises, roll back."""

    def as_unavailable(self, error: BaseException) -> StoreUnavailable | None:
        """Convert an error of the driver to StoreUnavailable. Returns None for any other error."""


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in this thread, without an event loop. The coroutine must not suspend."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a transaction may only await its own statements")
