"""What operators ask of a database: the protocols behind the CLI, the pages, the API and alerts."""

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
    DeadLetters,
    DuplicateCount,
    Prunable,
    Rate,
    ReceiptCount,
    ReplayEntry,
    SecretUse,
    SelectedCount,
    SourceTotals,
    StoredAttempt,
    StoredBody,
    StoredDuplicate,
    StoredRejection,
)
from oncehook.store.rows import Cursor, Cutoffs, Place, Selection

T = TypeVar("T")


class Pruning(Protocol):
    """The turn to prune. Every verb is short, changes finished receipts only, and may be repeated after a crash."""

    async def make_days(self) -> None:
        """Have a place for the payloads of every day of the coming week."""

    async def drop_days(self, payloads: Cutoffs) -> list[str]:
        """Drop whole days of payloads in which nothing has to stay; return which. Never makes a claim wait."""

    async def prune_payloads(
        self, before: Cutoffs, after: Cursor | None, limit: int
    ) -> tuple[dict[str, int], Cursor | None]:
        """Look at the next `limit` receipts and delete their payloads: how many per source, and where to go on."""

    async def prune_receipts(
        self, before: Cutoffs, after: Cursor | None, limit: int
    ) -> tuple[dict[str, int], Cursor | None]:
        """The same for receipts with all that belongs to them."""

    async def clear_effects(self, before: Cutoffs, limit: int) -> int:
        """Take the arguments from up to `limit` effects that were done before their source's cutoff; how many."""

    async def prune_effects(self, before: datetime, limit: int) -> int:
        """Delete up to `limit` effects, with their keys, that were done before then; how many."""

    async def give_back(self) -> bool:
        """Give some of the free space back to the disk; whether there is more."""


class ReceiptStore(Protocol):
    """Receipts as people look at them."""

    async def find(
        self, wanted: Filter, *, limit: int, before: Place | None = None, down_to: Place | None = None
    ) -> list[Receipt]:
        """Receipts that match, newest first: older than `before`, and none older than `down_to`."""

    async def by_event_id(self, event_id: str, *, limit: int) -> list[Receipt]:
        """Receipts of a sender's id in any source, by the unique key, however many receipts there are."""

    async def window_end(self, wanted: Filter, *, before: Place | None, size: int) -> Place | None:
        """Where the next `size` receipts of `wanted`'s time end, whatever they are; None if there are fewer."""

    async def get(self, receipt: int) -> Receipt | None:
        """One receipt."""

    async def payload(self, receipt: int) -> StoredPayload | None:
        """What arrived, or None if it was pruned or never there."""

    async def duplicates(self, receipt: int) -> list[StoredDuplicate]:
        """The noted duplicates of a receipt, oldest first."""

    async def attempts(self, receipt: int) -> list[StoredAttempt]:
        """Every attempt at a receipt, oldest first."""

    async def sources(self) -> list[str]:
        """The sources that receipts are of, configured or not any more; by steps through the unique key."""


class OperationStore(Protocol):
    """What operators do, and the record of it."""

    async def now(self) -> datetime:
        """The database's time."""

    async def select(self, selection: Selection, *, after: int, limit: int) -> list[tuple[Receipt, bool]]:
        """Receipts that are selected, by id above `after`, and whether each one's payload is still there."""

    async def count(self, selection: Selection) -> list[SelectedCount]:
        """How many are selected, by status, whether they have a type, and whether their payload is still there."""

    async def replay(
        self, receipts: Sequence[int], actor: str, detail: dict[str, Any], *, action: str = "replay"
    ) -> list[int]:
        """Move finished receipts back to `received` and record who did, in one transaction; returns those that moved.

        One in another state, without a type or without its payload is left as it is.
        """

    async def retry_now(self, receipts: Sequence[int], actor: str, detail: dict[str, Any]) -> list[int]:
        """Make waiting retries due now and record who asked, in one transaction; returns those that were waiting.

        An inline receipt is left as it is: its provider delivers it again.
        """

    async def replays(self, receipt: int) -> list[ReplayEntry]:
        """When and by whom a receipt was replayed, oldest first."""

    async def run_outcomes(self, run: str) -> dict[str, int]:
        """How many of the receipts that a replay moved are in which state now."""

    async def audit(self, actor: str, action: str, detail: dict[str, Any]) -> None:
        """Record what somebody did."""

    async def audited(self, *, before: int | None, limit: int) -> list[AuditEntry]:
        """What people did, newest first; `before` is the id of the last one of a page."""

    async def audited_run(self, run: str) -> list[AuditedRun]:
        """What the audit has of a replay that was started as `run`: a row per action, with how many it moved."""


class StatStore(Protocol):
    """Numbers for operators."""

    async def counts(self) -> list[ReceiptCount]:
        """Per source and status: how many receipts."""

    async def duplicate_counts(self) -> list[DuplicateCount]:
        """Per source: how many noted duplicates, and how many of them with another body."""

    async def dead_letters(self, limit: int) -> list[DeadLetters]:
        """Dead letters by source, handler and error: how many, the first and last time, and one of them."""

    async def lags(self) -> dict[str, float]:
        """Per source with work waiting: for how many seconds the oldest has been due (negative: not due yet)."""

    async def rates(self, since: datetime, seconds: int) -> list[Rate]:
        """The number of each series, source and bucket of that many seconds."""

    async def standing(self, most: int) -> SourceTotals:
        """Waiting events and dead letters up to `most`, and the newest arrival among the newest `most`: by source."""

    async def pulse(self) -> str:
        """A text that changes whenever something was received, attempted, noted or done."""


class RetentionStore(Protocol):
    """Deleting what is old, and erasing what somebody asks to have forgotten."""

    async def prunable(self, receipts: Cutoffs, payloads: Cutoffs) -> list[Prunable]:
        """Per source: how many finished receipts, and how many payloads of such, are older than its cutoff."""

    def pruning(self) -> AbstractAsyncContextManager[Pruning | None]:
        """The turn to prune, which one process at a time has; None if another has it."""

    async def bodies(self, after: int, limit: int) -> list[StoredBody]:
        """Payloads, by receipt above `after`."""

    async def about_object(self, object_id: str) -> list[int]:
        """The receipts of an object whose payloads are still there."""

    async def erase(self, receipts: Sequence[int], text: str | None, actor: str, detail: str) -> int:
        """Erase the payloads of `receipts`, and `text` where else they hold it; note who did; return how many went."""


class RejectionStore(Protocol):
    """Samples of rejected requests, and which secrets verify."""

    async def keep(self, rejection: Rejection) -> None:
        """Keep a sample of a rejected request, and of its source no more than REJECTIONS_KEPT."""

    async def find(self, source: str | None = None, *, limit: int = 20) -> list[StoredRejection]:
        """The kept samples, newest first."""

    async def note_secrets(self, used: Mapping[tuple[str, str], int]) -> None:
        """Add how often each (source, mark of a secret) has verified a delivery just now."""

    async def secrets_used(self) -> list[SecretUse]:
        """Per source and mark: how often it has verified, first and last when; and the database's time."""


class AlertStore(Protocol):
    """Incidents, and what is sent to targets."""

    async def note_rejections(self, rejected: Mapping[tuple[str, str], int]) -> None:
        """Add how many deliveries of each (source, reason) were rejected just now, to the current minute."""

    async def note_acks(self, acked: Mapping[tuple[str, int], int]) -> None:
        """Add how many deliveries of each (source, bucket of latencies) were acked, to the current minute."""

    async def measure(self, name: str, given: Mapping[str, Any]) -> list[RuleMeasurement]:
        """The rows of one of the statements that rules measure by."""

    async def take_turn(self, name: str, every: float) -> int | None:
        """Take a turn that comes once in `every` seconds for all processes: its number, or None if it was taken."""

    async def record(
        self, turn: tuple[str, int], firing: Sequence[Mapping[str, Any]], *,
        targets: Iterable[str], recover_after: float, remind: float | None,
    ) -> IncidentChanges | None:  # fmt: skip
        """Open an incident for what fires and has none, recover those that were below for long enough, and record what
        each target is to be told, in one transaction; None if the turn is another's by now, and nothing was done."""

    async def lease(self, limit: int, worker: str, targets: Sequence[TargetLease]) -> list[LeasedAlert]:
        """Take up to `limit` alerts that are due, or whose lease ran out: attempt counted, fence raised.

        A recovery is due only once its target was told of the beginning.
        """

    async def settle(self, settled: SettledAlert) -> bool:
        """End an attempt to send an alert; False if its lease was lost."""

    async def incidents(self, limit: int) -> list[Incident]:
        """The open incidents, newest first, each with its alerts."""

    async def prune(self, incidents: float, rejections: float, acks: float) -> None:
        """Delete incidents that recovered that many seconds ago, and counts of rejections and acks of that age."""
