"""The part of a store that differs per database: what another database implements."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from oncehook.config.settings import Settings
from oncehook.store.dialect import Dialect
from oncehook.store.executor import Executor
from oncehook.store.operator_protocols import RetentionStore
from oncehook.store.pauses import Pauses
from oncehook.store.protocols import ClaimStore, LeaseStore, SchemaStore, WakeupStore
from oncehook.store.transaction import Heart, Transaction


@dataclass(slots=True)
class Process:
    """What the store knows of the process that uses it."""

    worker: str = ""
    """The name of the worker whose handlers use the store, once there is one."""

    longest_handler: Callable[[], float] = lambda: 300.0
    """How many seconds a handler may take, at most."""


class NoWakeups:
    """Implements `WakeupStore` where processes cannot wake each other: workers poll."""

    is_on = False

    async def notify(self) -> None:
        """Does nothing."""

    async def listen(self, wake: Callable[[], None]) -> None:
        """Returns at once."""


class Connector(Protocol):
    """What opens connections."""

    settings: Settings
    """What it opens them with. A change counts from the next `open`."""


class Database(Protocol):
    """The part of a store that differs per database."""

    dialect: Dialect
    process: Process
    connector: Connector
    executor: Executor
    claims: ClaimStore
    schema: SchemaStore
    retention: RetentionStore
    wakeups: WakeupStore

    @property
    def handler_turn(self) -> asyncio.Lock | None:
        """Where handlers' transactions take turns: the lock of a transaction that somebody else begins."""

    def leases(self, pauses: Pauses) -> LeaseStore:
        """Leases that skip what is paused."""

    async def open(self) -> None:
        """Connect, check that commits are durable, and bring the schema up to date if the settings say so."""

    async def close(self) -> None:
        """Finish what is under way and disconnect."""

    async def ping(self) -> None:
        """Return if a claim could be committed now, and durably, else raise StoreUnavailable."""

    async def risks(self) -> list[str]:
        """Sentences about settings and standbys of the database that could cost acked events."""

    def transaction(self) -> Transaction:
        """A handler's transaction, not begun yet."""

    def heart(self) -> Heart:
        """A way to extend leases from a thread of its own."""


@asynccontextmanager
async def closing_on_error(database: Database) -> AsyncIterator[None]:
    """Closes a database that could not be opened completely."""
    try:
        yield
    except BaseException:
        await database.close()
        raise
