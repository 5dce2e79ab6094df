"""The handler's transaction: its writes, and the mark that they are done, commit together or not at all.

It opens at the handler's first use of `tx`, so a handler that first waits on the network holds no lock. `tx` belongs to
that handler alone and is dead once its event is settled.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from oncehook.concurrency.calling import in_its_way
from oncehook.model.errors import OncehookError
from oncehook.model.lease import Held, Settled

SAVEPOINT = ("SAVEPOINT handler", "ROLLBACK TO SAVEPOINT handler", "RELEASE SAVEPOINT handler")
"""Set, undo, forget: the same words on both databases."""


Pick = Callable[[Mapping[str, str]], str]
"""One of the store's own statements, out of all of them; its only parameter is `:given`, a JSON text."""

ENDED = "tx was used after its handler had ended: await everything inside the handler"
NOT_YOURS = "the handler ended its transaction itself: COMMIT and ROLLBACK are not its to send"
RESETS = "RESET ALL counts as such: reset settings by their names"


class TransactionClosed(OncehookError):
    """`tx` was used after its handler had ended, or the handler ended the transaction itself."""


class Transaction(Protocol):
    """What the processor needs of a handler's transaction, whoever opens it."""

    @property
    def used(self) -> bool:
        """Whether the handler touched it. One that did not is settled in bulk with others."""

    async def connection(self) -> Any:
        """The connection, in its transaction; begun now if it was not."""

    async def ask(self, pick: Pick, given: str) -> list[Any]:
        """Run one of the store's own statements in it, begun now if it was not; its rows."""

    async def settle(self, settled: Sequence[Settled]) -> bool:
        """Write the marks as the last statement and commit; False, with all rolled back, if a lease was lost.

        Whatever it raises, it is rolled back too, or was committed and only the reply is lost: the fence knows.
        """

    async def rollback(self) -> None:
        """Undo everything. Nothing happens if it was never used, or is over."""

    def offer(self, *, is_async: bool) -> Any:
        """What the handler gets as `tx`."""

    def withdraw(self) -> None:
        """The handler has ended: what it got is dead."""


class Native:
    """The `tx` of a store's own transaction: a proxy of its connection."""

    _tx: "Tx | None" = None

    def offer(self: Any, *, is_async: bool) -> Any:
        self._tx = Tx(self)
        return self._tx

    def withdraw(self) -> None:
        if self._tx is not None:
            self._tx._close()


class Heart(Protocol):
    """A store's way to extend leases and to release them, used from one thread."""

    def beat(self, held: Sequence[Held], seconds: float) -> None: ...

    def release(self, held: Sequence[Held]) -> None: ...

    def close(self) -> None: ...


class Tx:
    """A handler's `tx`: the connection of its transaction, asked for when it is first used.

    In a loop each verb is awaited; in a thread, where a plain `def` handler runs, it answers at once.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Transaction | None = transaction
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def ask(*args: Any, **named: Any) -> Any:
            if self._transaction is None:
                raise TransactionClosed(ENDED)
            connection = await self._transaction.connection()
            return await getattr(connection, name)(*args, **named)

        def call(*args: Any, **named: Any) -> Any:
            return in_its_way(ask(*args, **named), self._loop)

        if name.startswith("_"):
            raise AttributeError(name)
        return call

    def transaction(self) -> "Savepoint":
        """A savepoint: `async with tx.transaction():`, `with` in a thread, undoes only its own block when it fails."""
        return Savepoint(self)

    def _close(self) -> None:
        self._transaction = None


class Savepoint:
    """A nested transaction: SAVEPOINT, and its RELEASE or ROLLBACK, in the words that both databases share."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx

    async def __aenter__(self) -> None:
        await self._tx.execute(SAVEPOINT[0])

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            await self._tx.execute(SAVEPOINT[1])
        await self._tx.execute(SAVEPOINT[2])

    def __enter__(self) -> None:
        self._tx.execute(SAVEPOINT[0])

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            self._tx.execute(SAVEPOINT[1])
        self._tx.execute(SAVEPOINT[2])


def django_writes_apart() -> bool:
    """Whether Django is set up with a database here: its ORM has connections of its own, and knows nothing of `tx`."""
    conf = sys.modules.get("django.conf")
    if conf is None or not conf.settings.configured:
        return False
    engines = [database.get("ENGINE", "") for database in conf.settings.DATABASES.values()]
    return any(engine and not engine.endswith(".dummy") for engine in engines)
