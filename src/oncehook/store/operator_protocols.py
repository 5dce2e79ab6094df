"""Protocols that a database implements for operators: for the CLI, the dashboard, the API and alerts."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol, TypeVar

from oncehook.model.delivery import Rejection
from oncehook.model.incident import Incident, IncidentChanges, LeasedAlert, RuleMeasurement, SettledAlert, TargetLease
from oncehook.model.receipt import Filter, Receipt, StoredPayload
from oncehook.model.rows import (
    AuditedRun,
    AuditEntry,
    ConsumerReceipt,
    KeyUse,
    Leader,
    Prunable,
    RegisteredKey,
    ReplayEntry,
    SecretUse,
    SelectedCount,
    StoredAttempt,
    StoredBody,
    StoredDuplicate,
    StoredRejection,
    TenantCounts,
)
from oncehook.model.statistics import DeadLetters, DuplicateCount, Lag, Rate, ReceiptCount, SourceTotals
from oncehook.store.leadership import Leadership
from oncehook.store.rows import (
    AuditedReplay,
    BackfillEvent,
    BackfillPayload,
    BackfillRange,
    BackfillRow,
    Cutoffs,
    FsckBody,
    FsckRow,
    FsckWindow,
    PruneCursor,
    ReceiptPosition,
    ReplayCount,
    ResealedPage,
    SchemaColumn,
    SchemaObject,
    Selection,
)

T = TypeVar("T")


class Pruning(Protocol):
    """The leadership of the task `prune`. Every method is short, and may be repeated after a crash.

    Each change is fenced: it raises LeadershipLost, and changes nothing, if another process has become the leader.
    """

    async def extend(self) -> None:
        """Stay the leader for another term. Raises LeadershipLost if another process is the leader."""

    async def create_days(self) -> None:
        """Create the partitions for the payloads of the coming week."""

    async def drop_days(self, payloads: Cutoffs) -> list[str]:
        """Drop the days of payloads that are no longer needed, and return their names. Never makes a claim wait."""

    async def prune_payloads(
        self, before: Cutoffs, after: PruneCursor | None, limit: int
    ) -> tuple[dict[str, int], PruneCursor | None]:
        """Delete the payloads of the next `limit` old receipts. Returns the number per source, and the next cursor."""

    async def prune_receipts(
        self, before: Cutoffs, after: PruneCursor | None, limit: int
    ) -> tuple[dict[str, int], PruneCursor | None]:
        """Delete the next `limit` old receipts with all their rows. Returns the same as `prune_payloads`."""

    async def clear_effects(self, before: Cutoffs, limit: int) -> int:
        """Clear the arguments of up to `limit` effects that were done before the cutoff. Returns how many."""

    async def prune_effects(self, before: datetime, limit: int) -> int:
        """Delete up to `limit` effects that were done before `before`, with their keys. Returns how many."""

    async def free_space(self) -> bool:
        """Return some free space to the file system. Returns whether more can be freed."""


class BackfillStore(Protocol):
    """Receipts of a consumer for events that arrived before it subscribed."""

    async def page(self, range_: BackfillRange, after: PruneCursor, limit: int) -> list[BackfillEvent]:
        """Return the next events that the consumer has no receipt of and whose payload is kept, oldest first."""

    async def count(self, range_: BackfillRange) -> int:
        """Count these events."""

    async def payloads(self, receipts: Sequence[int]) -> list[BackfillPayload]:
        """Return the payloads of these receipts of `main`, as they are stored."""

    async def insert(self, consumer: str, rows: Sequence[BackfillRow]) -> dict[int, str] | None:
        """Write the receipts, unless the consumer has one of the event or its payload was pruned.

        Returns the statuses of the written receipts by the receipts of `main`, or None if the consumer was removed.
        """


class ReceiptStore(Protocol):
    """Receipts, as shown to people."""

    async def find(
        self,
        filter: Filter,
        *,
        limit: int,
        before: ReceiptPosition | None = None,
        down_to: ReceiptPosition | None = None,
    ) -> list[Receipt]:
        """Return matching receipts, newest first: those older than `before` and not older than `down_to`."""

    async def by_event_id(self, event_id: str, *, limit: int) -> list[Receipt]:
        """Return the receipts with a sender's event id, in all sources. Uses the unique index."""

    async def window_end(self, filter: Filter, *, before: ReceiptPosition | None, size: int) -> ReceiptPosition | None:
        """Return the position of the last of the next `size` receipts, or None if there are fewer.

        Only the times of `filter` are used.
        """

    async def get(self, receipt: int) -> Receipt | None:
        """Return one receipt, or None."""

    async def payload(self, receipt: int) -> StoredPayload | None:
        """Return the payload of a receipt, or None if it was pruned or never existed."""

    async def consumers_of(self, receipt: Receipt) -> list[ConsumerReceipt]:
        """Return the state of the event for each consumer that has a receipt of it, `main` first."""

    async def duplicates(self, receipt: int) -> list[StoredDuplicate]:
        """Return the recorded duplicates of a receipt, oldest first."""

    async def attempts(self, receipt: int) -> list[StoredAttempt]:
        """Return all attempts at a receipt, oldest first."""

    async def sources(self) -> list[str]:
        """Return the sources that have receipts, configured or not. Steps through the unique index."""


class EncryptedRowStore(Protocol):
    """The rows that the key ring has encrypted."""

    async def registered(self) -> list[RegisteredKey]:
        """Return the keys that may have encrypted rows. They were recorded when a process began to encrypt."""

    async def register(self) -> None:
        """Record that the first key of the key ring may have encrypted rows."""

    async def unregister(self, key_id: str) -> None:
        """Record that a key has encrypted no row that is still stored."""

    def is_same_key(self, key: RegisteredKey) -> bool:
        """Return whether the key ring has the recorded key, and not another key with the same id."""

    async def counts(self) -> list[KeyUse]:
        """Count the encrypted rows by table and key. Reads every row."""

    async def reseal(self, part: str, after: Any = None) -> ResealedPage:
        """Encrypt the next page of rows with the first key, if another key encrypted them.

        `after` is the `next` of the page before. Rows that are locked or change at the same time are left out.
        """

    async def payloads_of(self, key_id: str, limit: int) -> list[int]:
        """Return up to `limit` receipts whose payload a key has encrypted."""

    async def erase_texts(self, key_id: str, limit: int) -> int:
        """Erase up to `limit` error texts and arguments per table that a key has sealed. Returns how many rows."""


class OperationStore(Protocol):
    """Operations of people, and their audit log."""

    async def now(self) -> datetime:
        """Return the database's time."""

    async def select(self, selection: Selection, *, after: int, limit: int) -> list[tuple[Receipt, bool]]:
        """Return the selected receipts with an id above `after`, each with whether its payload still exists."""

    async def count(self, selection: Selection) -> list[SelectedCount]:
        """Count the selected receipts by status, by whether they have a type, and by whether the payload exists."""

    async def replay(
        self, receipts: Sequence[int], actor: str, detail: dict[str, Any], *, action: str = "replay"
    ) -> list[int]:
        """Set finished receipts to `received` and record the actor, in one transaction. Returns the changed receipts.

        Receipts in another state, without a type or without a payload are not changed.
        """

    async def retry_now(self, receipts: Sequence[int], actor: str, detail: dict[str, Any]) -> list[int]:
        """Make waiting retries due now and record the actor, in one transaction. Returns the changed receipts.

        Inline receipts are not changed: their provider delivers them again.
        """

    async def replays(self, receipt: int) -> list[ReplayEntry]:
        """Return the time and actor of each replay of a receipt, oldest first."""

    async def run_outcomes(self, run: str) -> dict[str, int]:
        """Count the receipts that a replay moved, by their current status."""

    async def audit(self, actor: str, action: str, detail: dict[str, Any]) -> None:
        """Add an entry to the audit log."""

    async def audited(self, *, before: int | None, limit: int) -> list[AuditEntry]:
        """Return entries of the audit log, newest first, with ids below `before`."""

    async def audited_run(self, run: str) -> list[AuditedRun]:
        """Return the audit entries of a replay, one row for each action, with the number of receipts it moved."""


class StatStore(Protocol):
    """Statistics for operators."""

    async def counts(self) -> list[ReceiptCount]:
        """Count receipts by source, consumer and status."""

    async def duplicate_counts(self) -> list[DuplicateCount]:
        """Count recorded duplicates by source, and those among them with another body."""

    async def dead_letters(self, limit: int) -> list[DeadLetters]:
        """Group dead letters by source, consumer, handler and error: their number, times and last receipt."""

    async def lags(self) -> list[Lag]:
        """Return the lag of each source and consumer that has waiting events."""

    async def rates(self, since: datetime, seconds: int) -> list[Rate]:
        """Count events of each series and source in buckets of `seconds`."""

    async def source_totals(self, most: int) -> SourceTotals:
        """Return the waiting receipts and the dead letters by source and consumer, and each source's newest arrival.

        Each is read from up to `most` rows.
        """

    async def change_token(self) -> str:
        """Return a text that changes whenever an event is received, attempted, recorded as a duplicate or settled."""


class RetentionStore(Protocol):
    """Deletion of old data, and erasure on request."""

    async def prunable(self, receipts: Cutoffs, payloads: Cutoffs) -> list[Prunable]:
        """Count, by source, the finished receipts and the payloads that are older than their cutoff."""

    def start_pruning(self) -> AbstractAsyncContextManager[Pruning | None]:
        """Become the leader of the task `prune`. None if another process is the leader."""

    async def payloads(self, after: int, limit: int) -> list[StoredBody]:
        """Return the payloads of receipts with an id above `after`, in the order of ids."""

    async def with_object(self, object_id: str) -> list[int]:
        """Return the receipts of an object whose payloads still exist."""

    async def erase(self, receipts: Sequence[int], text: str | None, actor: str, detail: str) -> int:
        """Erase the payloads of `receipts`, and `text` in their other columns. Returns the number of erased payloads.

        The audit log records the actor if there was anything to erase.
        """

    async def tenant_counts(self, source: str, tenant: str) -> TenantCounts:
        """Count the rows of a tenant."""

    async def erase_tenant(
        self, source: str, tenant: str, actor: str, *, after: PruneCursor | None, limit: int
    ) -> tuple[int, PruneCursor | None]:
        """Erase the payloads, texts, duplicates, keys and effect arguments of up to `limit` receipts of a tenant.

        The audit log records the actor. Returns the number of erased payloads, and where to continue.
        """

    async def erase_tenant_state(self, source: str, tenant: str, actor: str) -> int:
        """Delete the effects, entities and rejection samples of a tenant. Returns how many there were."""


class RejectionStore(Protocol):
    """Samples of rejected requests, and uses of secrets."""

    async def keep(self, rejection: Rejection) -> None:
        """Store a sample of a rejected request, and delete all but the newest MAX_REJECTIONS of its source."""

    async def find(self, source: str | None = None, *, limit: int = 20) -> list[StoredRejection]:
        """Return the stored samples, newest first."""

    async def note_secrets(self, used: Mapping[tuple[str, str], int]) -> None:
        """Add to the number of deliveries that each (source, digest of a secret) has verified."""

    async def secrets_used(self) -> list[SecretUse]:
        """Return, for each source and secret, its number of uses, the first and last use, and the database's time."""


class AlertStore(Protocol):
    """Incidents and the notifications of alert targets."""

    async def note_rejections(self, rejected: Mapping[tuple[str, str], int]) -> None:
        """Add to the number of rejected deliveries of each (source, reason) in the current minute."""

    async def note_acks(self, acked: Mapping[tuple[str, int], int]) -> None:
        """Add to the number of acked deliveries of each (source, latency bucket) in the current minute."""

    async def measure(self, name: str, parameters: Mapping[str, Any]) -> list[RuleMeasurement]:
        """Run one of the queries by which rules are measured."""

    async def record(
        self, leadership: Leadership, firing: Sequence[Mapping[str, Any]], *,
        targets: Iterable[str], recover_after: float, remind: float | None,
    ) -> IncidentChanges:  # fmt: skip
        """Open incidents for the rules that fire, close those that have recovered, and queue the notifications.

        All changes are in one transaction. Raises LeadershipLost, and changes nothing, if another process has become
        the leader.
        """

    async def lease(self, limit: int, worker: str, targets: Sequence[TargetLease]) -> list[LeasedAlert]:
        """Lease up to `limit` notifications that are due or whose lease has expired.

        The attempts and the fencing counter of each increase by one. A recovery is due only after its target has
        received the opening.
        """

    async def settle(self, settled: SettledAlert) -> bool:
        """End an attempt to send a notification. Returns False if its lease was lost."""

    async def incidents(self, limit: int) -> list[Incident]:
        """Return the open incidents, newest first, each with its notifications."""

    async def prune(self, leadership: Leadership, incidents: float, rejections: float, acks: float) -> None:
        """Delete recovered incidents, rejection counts and ack counts that are older than these numbers of seconds.

        Raises LeadershipLost, and changes nothing, if another process has become the leader.
        """


class LeadershipStore(Protocol):
    """The leader of each task that one process does for all processes."""

    async def take(self, task: str, seconds: float) -> Leadership | None:
        """Become the leader of a task for `seconds`. Returns None if another process is the leader."""

    async def extend(self, leadership: Leadership, seconds: float) -> None:
        """Stay the leader until `seconds` from now. Raises LeadershipLost if another process is the leader."""

    async def release(self, leadership: Leadership) -> None:
        """Let another process become the leader now. Does nothing if one is already."""

    def taken(self, task: str, seconds: float) -> AbstractAsyncContextManager[Leadership | None]:
        """Be the leader for the length of a block, as `take` and `release`."""

    async def leaders(self) -> list[Leader]:
        """Return the last leader of each task."""


class FsckStore(Protocol):
    """Reads rows that contradict a guarantee, window by window. Nothing is written or locked."""

    async def window(
        self, table: str, after: FsckWindow | None, limit: int, *, source: str | None, since: datetime | None
    ) -> FsckWindow | None:
        """Return the next window of a table, with at most `limit` rows. None after the last row."""

    async def find(self, check: str, window: FsckWindow | None, **parameters: Any) -> list[FsckRow]:
        """Return the rows of a window that a check objects to. A check of a whole table has no window."""

    async def bodies(self, window: FsckWindow) -> list[FsckBody]:
        """Return the payloads of a window of receipts whose bytes the database could not compare itself."""

    async def replayed(self, window: FsckWindow) -> list[ReplayCount]:
        """Return the receipts of a window that were replayed."""

    async def audited_replays(self, after: int, limit: int) -> list[AuditedReplay]:
        """Return the receipts that the next `limit` replays of the audit log name."""

    async def objects(self) -> list[SchemaObject]:
        """Return the objects of the schema."""

    async def columns(self) -> list[SchemaColumn]:
        """Return the columns of all tables and views."""
