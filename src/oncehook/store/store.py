"""The store: one database with an attribute for each group of operations, such as `store.leases.take`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.keyring import KeyRing, read_keys
from oncehook.config.settings import Settings
from oncehook.model.event import MAIN
from oncehook.objects.payload_objects import PayloadObjects
from oncehook.store import queries
from oncehook.store.alerts import SqlAlertStore
from oncehook.store.backfill import SqlBackfillStore
from oncehook.store.consumers import SqlConsumerStore
from oncehook.store.database import Database
from oncehook.store.directory import SqlDirectoryStore
from oncehook.store.due_times import SqlDueTimeStore
from oncehook.store.effects import SqlEffectStore
from oncehook.store.email import SqlEmailStore
from oncehook.store.encrypted_rows import SqlEncryptedRowStore
from oncehook.store.encryption import Encryption
from oncehook.store.fast_path import SqlFastPathStore
from oncehook.store.fsck import SqlFsckStore
from oncehook.store.identity import IdentityMonitor
from oncehook.store.leadership import SqlLeadershipStore
from oncehook.store.operations import SqlOperationStore
from oncehook.store.operator_protocols import (
    AlertStore,
    BackfillStore,
    EncryptedRowStore,
    FsckStore,
    LeadershipStore,
    OperationStore,
    ReceiptStore,
    RejectionStore,
    RetentionStore,
    StatStore,
)
from oncehook.store.pauses import SqlPauseStore
from oncehook.store.payload_bodies import PayloadBodies
from oncehook.store.payload_objects import SqlPayloadObjectStore
from oncehook.store.protocols import (
    ClaimStore,
    ConsumerStore,
    DirectoryStore,
    DueTimeStore,
    EffectStore,
    EmailStore,
    LeaseStore,
    PauseStore,
    QueueStore,
    RateStore,
    RosterStore,
    SchemaStore,
    WakeupStore,
)
from oncehook.store.queue import SqlQueueStore
from oncehook.store.rates import SqlRateStore
from oncehook.store.receipts import SqlReceiptStore
from oncehook.store.rejections import SqlRejectionStore
from oncehook.store.roster import SqlRosterStore
from oncehook.store.stats import SqlStatStore

if TYPE_CHECKING:
    from oncehook.store.shards import ShardStore


class Store:
    """Uses the database's clock for all times. Callers pass texts that are already truncated and contain no NUL."""

    missing: Mapping[str, str] = MappingProxyType({})
    """The shards that did not answer the last call, each with the reason."""

    def __init__(self, database: Database, clock: Clock = SYSTEM) -> None:
        executor, pauses = database.executor, _make_pauses(database, clock, MAIN)
        self._clock = clock
        self.encryption = encryption = Encryption(lambda: self.keys)
        self.database = database
        self.dialect = database.dialect
        self.process = database.process
        self.sql = queries.load(database.dialect.name)
        self.claims: ClaimStore = database.claims
        self.leases: LeaseStore = database.leases(pauses, encryption)
        self.objects = PayloadObjects(lambda: self.settings.payload_store, clock)
        self.payload_objects = SqlPayloadObjectStore(executor)
        self.bodies = PayloadBodies(executor, self.objects, encryption)
        self.receipts: ReceiptStore = SqlReceiptStore(executor, encryption, self.bodies)
        self.effects: EffectStore = SqlEffectStore(executor, encryption)
        self.backfill: BackfillStore = SqlBackfillStore(executor)
        self.retention: RetentionStore = database.retention
        self.operations: OperationStore = SqlOperationStore(executor, encryption)
        self.stats: StatStore = SqlStatStore(executor, encryption)
        self.pauses: PauseStore = pauses
        self.queue: QueueStore = SqlQueueStore(executor)
        self.rates: RateStore = SqlRateStore(executor)
        self.due_times: DueTimeStore = SqlDueTimeStore(executor)
        self.roster: RosterStore = SqlRosterStore(executor)
        self.directory: DirectoryStore = SqlDirectoryStore(executor)
        self.encrypted_rows: EncryptedRowStore = SqlEncryptedRowStore(executor, lambda: self.keys, self.objects)
        self.consumers: ConsumerStore = SqlConsumerStore(executor)
        self.rejections: RejectionStore = SqlRejectionStore(executor)
        self.alerts: AlertStore = SqlAlertStore(executor)
        self.leadership: LeadershipStore = SqlLeadershipStore(executor)
        self.email: EmailStore = SqlEmailStore(executor, database.transaction)
        self.fast_path = SqlFastPathStore(executor)
        self.fsck: FsckStore = SqlFsckStore(executor)
        self.schema: SchemaStore = database.schema
        self.wakeups: WakeupStore = database.wakeups
        self.shards: ShardStore | None = database.shards
        self.open = database.open
        self.ping = database.ping
        self.risks = database.risks
        self.identity = database.identity
        self.identities: IdentityMonitor = database.identities
        self.transaction = database.transaction
        self.heartbeat_connection = database.heartbeat_connection
        self._keys: KeyRing | None = None

    async def close(self) -> None:
        """Close the database, and the connections to payload stores."""
        try:
            await self.objects.close()
        finally:
            await self.database.close()

    @property
    def keys(self) -> KeyRing:
        """The key ring of the setting `keys`, read on first use. Raises ConfigurationError if it cannot be read."""
        if self._keys is None:
            self._keys = read_keys(self.settings.keys)
        return self._keys

    def load_keys(self) -> None:
        """Read the key ring again: a file or a variable that it refers to may have changed."""
        self._keys = read_keys(self.settings.keys)

    @property
    def stores(self) -> "list[Store]":
        """This store, or the stores of all shards, for operations that visit each one."""
        return [self]

    def leases_of(self, consumer: str) -> LeaseStore:
        """Make a store of the leases of one consumer, with its own backlog. `leases` has those of `main`."""
        return self.database.leases(_make_pauses(self.database, self._clock, consumer), self.encryption)

    @property
    def settings(self) -> Settings:
        """The settings that the next `open` uses."""
        return self.database.connector.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self.database.connector.settings = settings


def _make_pauses(database: Database, clock: Clock, consumer: str) -> SqlPauseStore:
    """Make a store of the pauses, with the backlog of one consumer."""
    process = database.process
    return SqlPauseStore(database.executor, clock, consumer, has_tenants=lambda: process.has_tenants())
