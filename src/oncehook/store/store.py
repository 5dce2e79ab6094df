"""The store: one database, and what each part of the code asks of it, by noun."""

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.settings import Settings
from oncehook.store import queries
from oncehook.store.alerts import Alerts
from oncehook.store.database import Database
from oncehook.store.effects import Effects
from oncehook.store.email import Email
from oncehook.store.operations import Operations
from oncehook.store.operator_protocols import (
    AlertStore,
    OperationStore,
    ReceiptStore,
    RejectionStore,
    RetentionStore,
    StatStore,
)
from oncehook.store.pauses import Pauses
from oncehook.store.protocols import (
    ClaimStore,
    EffectStore,
    EmailStore,
    LeaseStore,
    PauseStore,
    RosterStore,
    SchemaStore,
    WakeupStore,
)
from oncehook.store.receipts import Receipts
from oncehook.store.rejections import Rejections
from oncehook.store.roster import Roster
from oncehook.store.stats import Stats


class Store:
    """Times are the database's own; every text that comes in is already capped and free of NULs."""

    def __init__(self, database: Database, clock: Clock = SYSTEM) -> None:
        executor, pauses = database.executor, Pauses(database.executor, clock)
        self.database = database
        self.dialect = database.dialect
        self.process = database.process
        self.sql = queries.load(database.dialect.name)
        self.claims: ClaimStore = database.claims
        self.leases: LeaseStore = database.leases(pauses)
        self.receipts: ReceiptStore = Receipts(executor)
        self.effects: EffectStore = Effects(executor)
        self.retention: RetentionStore = database.retention
        self.operations: OperationStore = Operations(executor)
        self.stats: StatStore = Stats(executor)
        self.pauses: PauseStore = pauses
        self.roster: RosterStore = Roster(executor)
        self.rejections: RejectionStore = Rejections(executor)
        self.alerts: AlertStore = Alerts(executor)
        self.email: EmailStore = Email(executor, database.transaction)
        self.schema: SchemaStore = database.schema
        self.wakeups: WakeupStore = database.wakeups
        self.open = database.open
        self.close = database.close
        self.ping = database.ping
        self.risks = database.risks
        self.transaction = database.transaction
        self.heart = database.heart

    @property
    def settings(self) -> Settings:
        """What it opens with."""
        return self.database.connector.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self.database.connector.settings = settings
