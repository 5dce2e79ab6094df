"""What the receiver, the worker and the relay need of a database, one protocol per area.

`operator_protocols.py` has the protocols for operators. One suite, tests/store, checks every database against
both.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Protocol, TypeVar

from oncehook.model.claim import Claim, Claimed, Duplicate
from oncehook.model.effect import (
    EffectFilter,
    EntityState,
    ExpiredEffect,
    LeasedEffect,
    NoopCount,
    SettledEffect,
    StoredEffect,
    StoredNoop,
    WaitingEffects,
)
from oncehook.model.lease import Held, Leased, Settled
from oncehook.model.patterns import Handled
from oncehook.model.rows import (
    AbandonedReceipt,
    ExpiredReceipt,
    LiveHandler,
    Pause,
    Unhandled,
)
from oncehook.store.rows import EffectTarget, Position, Type
from oncehook.store.transaction import Transaction

T = TypeVar("T")


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


class EmailStore(Protocol):
    """The statements about email and entities."""

    async def query(self, name: str, given: Any, kind: type[T]) -> list[T]:
        """The rows of a statement that only reads. `given` goes as JSON."""

    async def transact(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `work` in a transaction: when this returns, its writes are committed. If it raises, none is."""


class ClaimStore(Protocol):
    """What the receiver writes."""

    parallel: int
    """How many `insert` calls may usefully be under way at once."""

    async def insert(self, claims: Sequence[Claim]) -> list[Claimed]:
        """Insert all that are new in one durable transaction; return what became of each, in their order.

        No two of `claims` have the same (source, event_id). Receipts are numbered in their order. When this returns,
        the commit is on disk. It raises RowRefused if the database refuses a row for what is in it (KeyTaken if one of
        its `keys` is another receipt's), StoreUnavailable if nothing can be recorded now.
        """

    async def insert_or_find(self, claim: Claim) -> Claimed:
        """Same as `insert` for one claim; if one of its `keys` is taken, what is known of the receipt that has it."""

    async def note_duplicates(self, duplicates: Sequence[Duplicate]) -> None:
        """Append deliveries of events that were here before, at most DUPLICATES_KEPT of a kind per receipt."""


class WakeupStore(Protocol):
    """How processes wake each other's workers."""

    @property
    def is_on(self) -> bool:
        """Whether `notify` may reach anybody."""

    async def notify(self) -> None:
        """Tell the workers of other processes that something may be due. A hint: it never raises."""

    async def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` when another process notifies, and once at first. Returns where there is no way to listen.

        Raises StoreUnavailable when the connection is lost.
        """


class LeaseStore(Protocol):
    """What workers take and how attempts end."""

    async def take(
        self, limit: int, seconds: float, worker: str, *,
        rescued: bool = False, skip_failed: Collection[str] = (), handled: Handled | None = None,
    ) -> list[Leased]:  # fmt: skip
        """Take up to `limit` due receipts of sources that are not paused: `processing`, attempt counted, fence raised.

        Only what is `handled` is taken; None: everything. Receipts that no process handles (`set_apart`) are not taken.
        With `rescued`, only such whose last worker died; without, only others. Of receipts with a serial key only the
        first of its key that is not finished is taken, and only while none of that key is `processing`. A dead letter
        is not finished, except in the sources of `skip_failed`, and where its payload is gone.
        """

    async def take_one(self, receipt: int, seconds: float, worker: str) -> Leased | None:
        """Take one inline receipt that is `retrying`, or whose lease ran out; None if it is neither."""

    async def settle(self, settled: Sequence[Settled]) -> set[int]:
        """End attempts: the receipts whose lease still held are moved on, with a row of history; returns those."""

    async def release(self, held: Sequence[Held], after: float | None = None) -> int:
        """Release receipts that were leased and not started, and their attempts; returns how many were still held.

        With `after`, they are due again in that many seconds.
        """

    async def release_strays(self, worker: str, held: Collection[int]) -> int:
        """Release what `worker` has leased besides the receipts `held`: it never heard of them. Returns how many."""

    async def expired(self, limit: int, after: int) -> list[ExpiredReceipt]:
        """Receipts whose lease ran out, by id above `after`."""

    async def abandon_inline(self, reason: str) -> list[AbandonedReceipt]:
        """Make dead letters of inline receipts whose provider has stopped retrying.

        `last_error` becomes `reason`, followed by the error of the last attempt.
        """

    async def end_sessions(self, worker: str) -> int:
        """End what handlers of a worker that lost all its leases still hold open in the database; how many sessions."""

    async def next_due(self, handled: Handled | None = None) -> float | None:
        """Seconds until the next receipt that may be leased is due (negative: overdue), or None if none waits."""


class PauseStore(Protocol):
    """Paused sources."""

    async def pause(self, source: str, actor: str, *, reason: str | None = None, seconds: float | None = None) -> bool:
        """From here on lease nothing of a source, in any process, and record who asked; False if it was paused.

        With `seconds` it is resumed by itself, by the database's time, when a worker next looks after that.
        """

    async def resume(self, source: str, actor: str) -> bool:
        """Lease it again, and record who asked; False if it was not paused."""

    async def active(self) -> list[Pause]:
        """The paused sources."""


class RosterStore(Protocol):
    """The verbs of the roster."""

    async def register(self, worker: str, handled: Handled) -> None:
        """Record what a process handles, in place of what it handled before. It is live for a minute."""

    async def seen(self, worker: str) -> bool:
        """Keep a process live for another minute; False if it is not registered."""

    async def live_handlers(self) -> list[LiveHandler]:
        """What live processes handle."""

    async def waiting_types(
        self, after: Position | None, size: int, *, serial: bool
    ) -> tuple[list[Type], Position | None, bool]:
        """The types among the next `size` due receipts, where these receipts end, and whether there are more.

        With `serial`, among receipts with a serial key, due or not, in the order of their keys.
        """

    async def set_apart(
        self, types: Sequence[Type], after: Position | None, last: Position, size: int, *, serial: bool
    ) -> Counter[Type]:
        """Have the receipts of these types in a window wait until `take_up`; how many of each type."""

    async def unhandled_types(self, most: int) -> list[Type]:
        """The types that were set apart."""

    async def take_up(self, type_: Type, size: int) -> int:
        """Have up to `size` receipts of a type leased again, the oldest first; how many there were."""

    async def ignore_unhandled(self, type_: Type, reason: str, seconds: float, size: int) -> int:
        """Finish up to `size` receipts of a type that were set apart so long ago as `ignored`; how many.

        Nothing is done if a process has registered within the last minute.
        """

    async def unhandled(self) -> dict[str, Unhandled]:
        """By source: how many receipts were set apart, and since when."""


class SchemaStore(Protocol):
    """The tables."""

    async def pending(self) -> list[tuple[int, str, str]]:
        """(number, name, SQL) of the migrations that are not applied yet."""

    async def migrate(self) -> list[str]:
        """Apply them under a lock, each in a transaction; return the names of those that were."""

    async def move_times_back(self, seconds: float) -> None:
        """Move every recorded time back, for tests. Nothing may be at work meanwhile."""
