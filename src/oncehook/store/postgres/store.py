"""PostgreSQL through asyncpg: the store as a whole, duplicates, and everything that a person asks."""

from collections.abc import Sequence

import msgspec

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.settings import Settings
from oncehook.model.claim import Duplicate
from oncehook.store.alerts import Alerts
from oncehook.store.effects import Effects
from oncehook.store.email import Email
from oncehook.store.operations import Operations
from oncehook.store.postgres.claim import PostgresClaim
from oncehook.store.postgres.executor import PostgresExecutor
from oncehook.store.postgres.retention import PostgresRetention
from oncehook.store.postgres.work import PostgresWork
from oncehook.store.protocols import (
    AlertStore,
    EffectStore,
    EmailStore,
    OperationStore,
    ReceiptStore,
    RejectionStore,
    RetentionStore,
    StatStore,
)
from oncehook.store.receipts import Receipts
from oncehook.store.rejections import Rejections
from oncehook.store.rows import DUPLICATES_KEPT
from oncehook.store.stats import Stats

_encode = msgspec.json.Encoder().encode


class PostgresStore(PostgresClaim, PostgresWork):
    """The Store of `postgresql://…`."""

    def __init__(self, settings: Settings, clock: Clock = SYSTEM) -> None:
        super().__init__(settings, clock)
        self.executor = PostgresExecutor(self.connection)
        self.dialect = self.executor.dialect
        self.effects: EffectStore = Effects(self.executor)
        self.receipts: ReceiptStore = Receipts(self.executor)
        self.operations: OperationStore = Operations(self.executor)
        self.stats: StatStore = Stats(self.executor)
        self.rejections: RejectionStore = Rejections(self.executor)
        self.alerts: AlertStore = Alerts(self.executor)
        self.email: EmailStore = Email(self.executor, self.transaction)
        self.retention: RetentionStore = PostgresRetention(self, self.executor)

    async def note_duplicates(self, duplicates: Sequence[Duplicate]) -> None:
        rows = [
            {
                "receipt_id": d.receipt,
                "delivery_id": d.delivery_id,
                "fingerprint": d.fingerprint.hex(),
                "same_body": d.same_body,
            }
            for d in duplicates
        ]
        async with self.connection() as connection:
            await connection.execute(self.sql["note_duplicate"], _encode(rows).decode(), DUPLICATES_KEPT)
