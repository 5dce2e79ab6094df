"""What the house asks of a database. One behavioural suite, tests/conformance, holds every store to it."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Any, Protocol, TypeVar

from oncehook.config.settings import Settings
from oncehook.model.claim import Claim, Claimed, Duplicate
from oncehook.model.delivery import Rejection
from oncehook.model.effect import EffectFilter, LeasedEffect, SettledEffect
from oncehook.model.incident import AlertTarget, LeasedAlert, SettledAlert
from oncehook.model.lease import Held, Leased, Settled
from oncehook.model.patterns import Handled
from oncehook.model.receipt import Filter, Payload, Receipt
from oncehook.model.rows import (
    AuditedRun,
    AuditEntry,
    DeadLetters,
    DuplicateCount,
    EntityState,
    ExpiredEffect,
    Incident,
    Measured,
    NoopCount,
    Prunable,
    Rate,
    ReceiptCount,
    ReplayEntry,
    SecretUse,
    SelectedCount,
    Standing,
    StoredAttempt,
    StoredBody,
    StoredDuplicate,
    StoredEffect,
    StoredNoop,
    StoredRejection,
    WaitingEffects,
    Watched,
)
from oncehook.store.dialect import Dialect
from oncehook.store.roster import RosterStore
from oncehook.store.rows import Cursor, Cutoffs, EffectTarget, Place, Selection
from oncehook.store.transaction import Heart, Transaction

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


class EffectStore(Protocol):
    """Effects and entities."""

    async def lease(
        self, limit: int, worker: str, targets: Sequence[EffectTarget], *, rescued: bool = False
    ) -> list[LeasedEffect]:
        """Take up to `limit` due effects of these targets: `performing`, attempt counted, fence raised.

        With `rescued`, only such whose last relay died; without, only others.
        """

    async def settle(self, settled: Sequence[SettledEffect]) -> set[int]:
        """End attempts at effects: those whose lease still held are moved on; returns those."""

    async def expired(self, limit: int, after: int) -> list[ExpiredEffect]:
        """Effects whose lease ran out, by id above `after`."""

    async def recorded_by(self, scope: str, key: str) -> int | None:
        """The receipt whose event recorded a key, or None if there is none."""

    async def entity(self, scope: str, kind: str, id: str) -> EntityState | None:
        """Where an entity stands, or None if it was never advanced."""

    async def find(
        self, wanted: EffectFilter, *, limit: int, before: int | None = None, down_to: int | None = None
    ) -> list[StoredEffect]:
        """Effects that match, newest first: of an id below `before`, the last of a page, and none below `down_to`."""

    async def noops(self, receipt: int) -> list[StoredNoop]:
        """What a receipt's event asked for and did not get, oldest first."""

    async def noop_counts(self) -> list[NoopCount]:
        """Per source and reason: how often an event asked for what was done, or came too late."""

    async def counts(self) -> dict[str, int]:
        """How many effects are in which state."""

    async def bounded_counts(self, most: int) -> dict[str, int]:
        """The same, of each state up to `most`."""

    async def count_failed(self, wanted: EffectFilter) -> tuple[int, int]:
        """How many failed effects of a source and target can be replayed, and how many have lost their arguments."""

    async def waiting(self) -> list[WaitingEffects]:
        """Per kind and target with effects to be performed: how many, and for how long the oldest has been due."""

    async def replay(self, ids: Sequence[int], actor: str) -> list[int]:
        """Have failed effects performed again and record who asked, in one transaction; returns those that moved."""


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

    async def payload(self, receipt: int) -> Payload | None:
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

    async def standing(self, most: int) -> Standing:
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

    async def measure(self, name: str, given: Mapping[str, Any]) -> list[Measured]:
        """The rows of one of the statements that rules measure by."""

    async def take_turn(self, name: str, every: float) -> int | None:
        """Take a turn that comes once in `every` seconds for all processes: its number, or None if it was taken."""

    async def record(
        self, turn: tuple[str, int], firing: Sequence[Mapping[str, Any]], *,
        targets: Iterable[str], recover_after: float, remind: float | None,
    ) -> Watched | None:  # fmt: skip
        """Open an incident for what fires and has none, recover those that were below for long enough, and record what
        each target is to be told, in one transaction; None if the turn is another's by now, and nothing was done."""

    async def lease(self, limit: int, worker: str, targets: Sequence[AlertTarget]) -> list[LeasedAlert]:
        """Take up to `limit` alerts that are due, or whose lease ran out: attempt counted, fence raised.

        A recovery is due only once its target was told of the beginning.
        """

    async def settle(self, settled: SettledAlert) -> bool:
        """End an attempt to send an alert; False if its lease was lost."""

    async def incidents(self, limit: int) -> list[Incident]:
        """The open incidents, newest first, each with its alerts."""

    async def prune(self, incidents: float, rejections: float, acks: float) -> None:
        """Delete incidents that recovered that many seconds ago, and counts of rejections and acks of that age."""


class EmailStore(Protocol):
    """The statements about email and entities."""

    async def query(self, name: str, given: Any, kind: type[T]) -> list[T]:
        """The rows of a statement that only reads. `given` goes as JSON."""

    async def transact(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `work` in a transaction: when this returns, its writes are committed. If it raises, none is."""


class Store(RosterStore, Protocol):
    """The verbs. Times are the database's own; every text that comes in is already capped and clean."""

    settings: Settings
    """What it opens with."""

    dialect: Dialect
    """Facts about its database."""

    effects: EffectStore
    receipts: ReceiptStore
    operations: OperationStore
    stats: StatStore
    retention: RetentionStore
    rejections: RejectionStore
    alerts: AlertStore
    email: EmailStore

    worker: str
    """The name of the worker whose handlers use it, once there is one."""

    longest_handler: Callable[[], float]
    """How many seconds a handler may take, at most."""

    parallel_claims: int
    """How many `claim` calls may usefully be under way at once."""

    @property
    def notifies(self) -> bool:
        """Whether `notify` may reach anybody."""

    async def open(self) -> None:
        """Connect, check that commits are durable, and bring the schema up to date if the settings say so."""

    async def close(self) -> None:
        """Finish what is under way and disconnect."""

    async def ping(self) -> None:
        """Return if a claim could be committed now, and durably, else raise StoreUnavailable."""

    async def risks(self) -> list[str]:
        """Sentences about settings and standbys of the database that could cost acked events."""

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        """Insert all that are new in one durable transaction; return what became of each, in their order.

        No two of `claims` have the same (source, event_id). Receipts are numbered in their order. When this returns,
        the commit is on disk. It raises RowRefused if the database refuses a row for what is in it (KeyTaken if one of
        its `keys` is another receipt's), StoreUnavailable if nothing can be recorded now.
        """

    async def claim_or_find(self, claim: Claim) -> Claimed:
        """As `claim` for one; where one of its `keys` is taken, what is known of the receipt that has it."""

    async def notify(self) -> None:
        """Tell the workers of other processes that something may be due. A hint: it never raises."""

    async def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when another process notifies, and once at first. Returns where there is no way to listen.

        Raises StoreUnavailable when the connection is lost.
        """

    async def note_duplicates(self, duplicates: Sequence[Duplicate]) -> None:
        """Append deliveries of events that were here before, at most DUPLICATES_KEPT of a kind per receipt."""

    async def lease(
        self,
        limit: int,
        seconds: float,
        worker: str,
        *,
        rescued: bool = False,
        skip_failed: Collection[str] = (),
        handled: Handled | None = None,
    ) -> list[Leased]:
        """Take up to `limit` due receipts of sources that are not paused: `processing`, attempt counted, fence raised.

        Only what is `handled` is taken; None: everything. Receipts that no process handles (`set_apart`) are not taken.
        With `rescued`, only such whose last worker died; without, only others. Of receipts with a serial key only the
        first of its key that is not finished is taken, and only while none of that key is `processing`. A dead letter
        is not finished, except in the sources of `skip_failed`, and where its payload is gone.
        """

    async def pause(self, source: str, actor: str, *, reason: str | None = None, seconds: float | None = None) -> bool:
        """From here on lease nothing of a source, in any process, and record who asked; False if it was paused.

        With `seconds` it is resumed by itself, by the database's time, when a worker next looks after that.
        """

    async def resume(self, source: str, actor: str) -> bool:
        """Lease it again, and record who asked; False if it was not paused."""

    async def pauses(self) -> list[dict[str, Any]]:
        """The paused sources: `source`, `paused_at`, `actor`, `reason` and `ends_at`."""

    async def lease_one(self, receipt: int, seconds: float, worker: str) -> Leased | None:
        """Take one inline receipt that is `retrying`, or whose lease ran out; None if it is neither."""

    async def abandon_inline(self, reason: str) -> list[dict[str, Any]]:
        """Make dead letters of inline receipts whose provider has stopped retrying; returns what a log line needs.

        `last_error` becomes `reason`, followed by the error of the last attempt.
        """

    async def settle(self, settled: Sequence[Settled]) -> set[int]:
        """End attempts: the receipts whose lease still held are moved on, with a row of history; returns those."""

    async def release(self, held: Sequence[Held], after: float | None = None) -> int:
        """Give back receipts that were leased and not started, and their attempts; returns how many still were ours.

        With `after`, they are due again in so many seconds.
        """

    async def release_strays(self, worker: str, held: Collection[int]) -> int:
        """Give back what `worker` has leased beside the receipts `held`: it never heard of them. Returns how many."""

    async def expired(self, limit: int, after: int) -> list[dict[str, Any]]:
        """Receipts whose lease ran out, by id above `after`."""

    async def end_sessions(self, worker: str) -> int:
        """End what handlers of a worker that lost all its leases still hold open in the database; how many sessions."""

    async def next_due(self, handled: Handled | None = None) -> float | None:
        """Seconds until the next receipt that may be leased is due (negative: overdue), or None if none waits."""

    def transaction(self) -> Transaction:
        """A handler's transaction, not begun yet."""

    def heart(self) -> Heart:
        """A way to extend leases from a thread of its own."""

    async def pending_migrations(self) -> list[tuple[int, str, str]]:
        """(number, name, SQL) of the migrations that are not applied yet."""

    async def migrate(self) -> list[str]:
        """Apply them under a lock, each in a transaction; return the names of those that were."""
