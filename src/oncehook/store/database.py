"""The part of a store that differs per database."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from oncehook.config.settings import Settings
from oncehook.store.dialect import Dialect
from oncehook.store.encryption import Encryption
from oncehook.store.executor import Executor
from oncehook.store.identity import Identity, IdentityMonitor
from oncehook.store.operator_protocols import RetentionStore
from oncehook.store.pauses import SqlPauseStore
from oncehook.store.protocols import ClaimStore, LeaseStore, SchemaStore, WakeupStore
from oncehook.store.transaction import HeartbeatConnection, Transaction

if TYPE_CHECKING:
    from oncehook.store.shards import ShardStore


@dataclass(slots=True)
class Process:
    """Facts about the process that uses the store."""

    worker: str = ""
    """The name of the worker whose handlers use the store. Empty until a worker starts."""

    longest_handler: Callable[[], float] = lambda: 300.0
    """Returns the longest timeout of a handler, in seconds."""

    has_tenants: Callable[[], bool] = lambda: False
    """Returns whether a source of this process has tenants. Their events are then leased in turns."""


class NoWakeups:
    """Implements `WakeupStore` for a database without notifications. Workers poll instead."""

    is_on = False

    async def notify(self) -> None:
        """Do nothing."""

    async def listen(self, wake: Callable[[], None]) -> None:
        """Return immediately."""


class Connector(Protocol):
    """Opens connections."""

    settings: Settings
    """A change takes effect at the next `open`."""


class Database(Protocol):
    """The operations that each database implements for `Store`."""

    dialect: Dialect
    process: Process
    connector: Connector
    executor: Executor
    claims: ClaimStore
    schema: SchemaStore
    retention: RetentionStore
    wakeups: WakeupStore
    identities: IdentityMonitor
    shards: "ShardStore | None"
    """None if the database cannot be a shard."""

    @property
    def handler_lock(self) -> asyncio.Lock | None:
        """The lock that a transaction of the user's own session must hold. None if they can run concurrently."""

    def leases(self, pauses: SqlPauseStore, encryption: Encryption) -> LeaseStore:
        """Make the lease store. It skips the sources in `pauses`, and decrypts payloads with `encryption`."""

    async def open(self) -> None:
        """Connect, check that commits are durable, and migrate the schema if `migrate` is "auto"."""

    async def close(self) -> None:
        """Finish the running statements and disconnect."""

    async def ping(self) -> None:
        """Raise StoreUnavailable unless a claim could be committed durably now."""

    async def identity(self) -> Identity:
        """Return the name of the database and its timeline. It differs after a failover and a restored backup."""

    async def risks(self) -> list[str]:
        """Return a sentence for each setting or standby of the database with which acked events could be lost."""

    def transaction(self) -> Transaction:
        """Make a transaction for a handler. It begins at its first use."""

    def heartbeat_connection(self) -> HeartbeatConnection:
        """Make a connection that extends leases from the heartbeat's thread."""


@asynccontextmanager
async def closing_on_error(database: Database) -> AsyncIterator[None]:
    """Close the database if opening it fails."""
    try:
        yield
    except BaseException:
        await database.close()
        raise
