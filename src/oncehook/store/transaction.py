"""A handler's transaction: its writes and the processed status of its event commit together or not at all.

The transaction begins when the handler first uses `tx`, so a handler that first waits for the network holds no lock.
Only that handler can use `tx`, and only until its event is settled.
"""

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from oncehook.concurrency.calling import Function, await_or_block
from oncehook.model.errors import OncehookError
from oncehook.model.lease import LeaseKey, Settled

SAVEPOINT = ("SAVEPOINT handler", "ROLLBACK TO SAVEPOINT handler", "RELEASE SAVEPOINT handler")
"""Set, roll back, release: the same statements on both databases."""


StatementSelector = Callable[[Mapping[str, str]], str]
"""Selects one of the store's statements by name. Its only parameter is `:input`, a JSON text."""

AFTER_HANDLER_ENDED = "tx was used after its handler had ended: await everything inside the handler"
ENDED_BY_HANDLER = "the handler ended its transaction itself: a handler must not send COMMIT or ROLLBACK"
RESET_ALL_HINT = "RESET ALL has the same effect: reset settings by name instead"


class TransactionClosed(OncehookError):
    """`tx` was used after its handler had ended, or the handler ended the transaction itself."""


class Transaction(Protocol):
    """A handler's transaction: one of the store's connections, or a session of the user's own."""

    @property
    def used(self) -> bool:
        """Whether the handler has used `tx`. If not, its event is settled in a batch with others."""

    async def connection(self) -> Any:
        """Begin the transaction if it has not begun, and return its connection."""

    async def run_query(self, select: StatementSelector, parameters: str) -> list[Any]:
        """Begin the transaction if it has not begun, run one of the store's statements, and return its rows."""

    async def settle(self, settled: Sequence[Settled]) -> bool:
        """Settle the events as the last statement, and commit. If a lease was lost, roll back and return False.

        If this raises, the transaction was rolled back, or it was committed and the reply was lost. The fencing counter
        tells which.
        """

    async def rollback(self) -> None:
        """Roll back. Does nothing if the transaction was never used or has ended."""

    def bind(self, function: Function) -> Function:
        """Return the function to call for the handler: the handler itself, or one that prepares its thread."""

    def make_tx(self, *, is_async: bool) -> Any:
        """Make the `tx` that the handler gets."""

    def close_tx(self) -> None:
        """Make `tx` unusable, because the handler has ended."""


class DriverTransaction:
    """Base of transactions on the store's connections. Their `tx` is a proxy of the driver's connection."""

    _tx: "Tx | None" = None

    def bind(self, function: Function) -> Function:
        return function

    def make_tx(self: Any, *, is_async: bool) -> Any:
        self._tx = Tx(self)
        return self._tx

    def close_tx(self) -> None:
        if self._tx is not None:
            self._tx._close()


class HeartbeatConnection(Protocol):
    """A dedicated connection that extends and releases leases from the heartbeat's thread."""

    def extend(self, keys: Sequence[LeaseKey], seconds: float) -> None:
        """Extend these leases to `seconds` from now. Raises StoreUnavailable if the database does not answer."""

    def release(self, keys: Sequence[LeaseKey]) -> None:
        """Release these receipts. No attempt is counted. Raises StoreUnavailable if the database does not answer."""

    def close(self) -> None:
        """Disconnect."""


class Tx:
    """A handler's `tx`: a proxy of its transaction's connection, which is acquired at the first use.

    An `async def` handler awaits each method. A plain `def` handler runs in a thread, where each method blocks.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction: Transaction | None = transaction
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def call_connection(*args: Any, **options: Any) -> Any:
            if self._transaction is None:
                raise TransactionClosed(AFTER_HANDLER_ENDED)
            connection = await self._transaction.connection()
            return await getattr(connection, name)(*args, **options)

        def call(*args: Any, **options: Any) -> Any:
            return await_or_block(call_connection(*args, **options), self._loop)

        if name.startswith("_"):
            raise AttributeError(name)
        return call

    def transaction(self) -> "Savepoint":
        """Make a savepoint for `async with`, or for `with` in a thread. An error rolls back only its block."""
        return Savepoint(self)

    def _close(self) -> None:
        self._transaction = None


class Savepoint:
    """A nested transaction, by SAVEPOINT and RELEASE or ROLLBACK TO."""

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


def django_is_separate() -> bool:
    """Whether this process has a Django database that handlers write outside of their transactions."""
    conf = sys.modules.get("django.conf")
    if conf is None or not conf.settings.configured or "oncehook.integrations.django.apps" in sys.modules:
        return False
    engines = [database.get("ENGINE", "") for database in conf.settings.DATABASES.values()]
    return any(engine and not engine.endswith(".dummy") for engine in engines)
