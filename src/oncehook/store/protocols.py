"""Protocols that a database implements for the receiver, the worker and the relay, one for each area.

`operator_protocols.py` has the protocols for operators. The tests in tests/store check every database against both.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
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
from oncehook.model.lease import Leased, LeaseKey, Settled
from oncehook.model.patterns import Handled
from oncehook.model.rows import (
    AbandonedReceipt,
    ChangedTenant,
    ExpiredReceipt,
    ListedReceipt,
    LiveHandler,
    ManagedSource,
    ManagedTenant,
    Pause,
    QueuedReceipt,
    StoredConsumer,
    Unhandled,
)
from oncehook.store.rows import (
    EffectTarget,
    EventType,
    GivenUp,
    SourceChange,
    TenantChange,
    Tokens,
    Window,
    WindowPosition,
)
from oncehook.store.transaction import Transaction

T = TypeVar("T")


class EffectStore(Protocol):
    """Effects and entities."""

    async def lease(
        self, limit: int, worker: str, targets: Sequence[EffectTarget], *, rescued: bool = False
    ) -> list[LeasedEffect]:
        """Lease up to `limit` due effects of these targets.

        Each leased effect becomes `performing`, and its attempts and fencing counter increase by one. With `rescued`,
        only effects whose last relay died are leased; without it, only the others.
        """

    def args_to_store(self, leased: Leased, scope: str, key: str, args: str) -> str:
        """Return the arguments of an effect as they are stored: sealed if the event's payload is encrypted."""

    async def settle(self, settled: Sequence[SettledEffect]) -> set[int]:
        """End attempts at effects. Changes the effects whose lease is still held, and returns their ids."""

    async def expired(self, limit: int, after: int) -> list[ExpiredEffect]:
        """Return effects whose lease has expired and whose id is greater than `after`, in the order of ids."""

    async def recorded_by(self, scope: str, key: str) -> int | None:
        """Return the receipt whose event recorded a key, or None if no event did."""

    async def entity(self, scope: str, kind: str, id: str) -> EntityState | None:
        """Return the newest state of an entity, or None if it was never advanced."""

    async def find(
        self, filter: EffectFilter, *, limit: int, before: int | None = None, down_to: int | None = None
    ) -> list[StoredEffect]:
        """Return matching effects, newest first, with ids below `before` and not below `down_to`."""

    async def noops(self, receipt: int) -> list[StoredNoop]:
        """Return the requests of a receipt's handlers that changed nothing, oldest first."""

    async def noop_counts(self) -> list[NoopCount]:
        """Count the requests that changed nothing, by source and reason."""

    async def counts(self) -> dict[str, int]:
        """Count effects by status."""

    async def bounded_counts(self, most: int) -> dict[str, int]:
        """Count effects by status, up to `most` of each."""

    async def count_failed(self, filter: EffectFilter) -> tuple[int, int]:
        """Count failed effects of a source and target: those that can be replayed, and those without arguments."""

    async def waiting(self) -> list[WaitingEffects]:
        """Return, for each kind and target, the number of waiting effects and the lag of the oldest."""

    async def replay(self, ids: Sequence[int], actor: str) -> list[int]:
        """Make failed effects due again and record the actor, in one transaction. Returns the ids that were changed."""


class EmailStore(Protocol):
    """Queries about email and entities. Each takes its parameters as one JSON text."""

    async def query(self, name: str, parameters: Any, kind: type[T]) -> list[T]:
        """Run a query that only reads, and return its rows as `kind`. `parameters` is encoded as JSON."""

    async def transact(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run `work` in a transaction, and commit it. If `work` raises, roll back."""


class ClaimStore(Protocol):
    """Operations of the receiver."""

    parallel: int
    """How many concurrent `insert` calls are useful."""

    async def insert(self, claims: Sequence[Claim]) -> list[Claimed]:
        """Insert all new claims in one durable transaction, and return the result of each, in their order.

        No two of `claims` have the same (source, event_id). Receipt ids ascend in the order of `claims`. When this
        returns, the commit is on disk. Raises RowRefused if the database rejects the content of a row, KeyTaken if
        another receipt has one of its `keys`, and StoreUnavailable if nothing can be written now.
        """

    async def insert_or_find(self, claim: Claim) -> Claimed:
        """Insert one claim. If another receipt has one of its `keys`, return that receipt instead."""

    async def note_duplicates(self, duplicates: Sequence[Duplicate]) -> None:
        """Record duplicate deliveries, up to MAX_DUPLICATES per receipt, and as many with another body."""


class WakeupStore(Protocol):
    """Wake-ups between processes."""

    @property
    def is_on(self) -> bool:
        """Whether `notify` can reach another process."""

    async def notify(self) -> None:
        """Wake the workers of other processes. A wake-up is a hint: this never raises."""

    async def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` once at the start and then whenever another process notifies.

        Returns immediately if the database has no notifications. Raises StoreUnavailable when the connection is lost.
        """


class LeaseStore(Protocol):
    """Leases of workers, and the settling of attempts. One consumer's store leases only its receipts."""

    async def take(
        self, limit: int, seconds: float, worker: str, *,
        rescued: bool = False, skip_failed: Collection[str] = (), handled: Handled | None = None,
    ) -> list[Leased]:  # fmt: skip
        """Lease up to `limit` due receipts of sources that are not paused.

        Each leased receipt becomes `processing`, and its attempts and fencing counter increase by one. `handled`
        limits the lease to the types that this process handles; None means all types. Receipts without a handler in
        any process (`hold_unhandled`) are not leased. With `rescued`, only receipts whose last worker died are leased;
        without it, only the others.

        Of the receipts with a serial key, only the first unfinished one of its key is leased, and only while none of
        that key is `processing`. A dead letter counts as unfinished, except in the sources `skip_failed` and after its
        payload was pruned.
        """

    async def take_one(self, receipt: int, seconds: float, worker: str) -> Leased | None:
        """Lease an inline receipt that is `retrying` or whose lease has expired. Returns None if it is neither."""

    async def take_listed(
        self, receipts: Sequence[int], seconds: float, worker: str, *,
        rescued: bool = False, skip_failed: Collection[str] = (), handled: Handled | None = None,
    ) -> tuple[list[Leased], dict[int, ListedReceipt]]:  # fmt: skip
        """Lease those of the listed receipts that `take` could lease now. Returns them, and the state of the others.

        For a receipt with a serial key, the first waiting receipt of that key is leased instead. Receipts that do not
        exist have no state.
        """

    async def take_keys(
        self, keys: Sequence[tuple[str, str]], seconds: float, worker: str, *,
        skip_failed: Collection[str] = (), handled: Handled | None = None,
    ) -> list[Leased]:  # fmt: skip
        """Lease the first waiting receipt of each of these (source, serial key), if `take` could lease it now."""

    async def settle(self, settled: Sequence[Settled]) -> set[int]:
        """End attempts and record them. Changes the receipts whose lease is still held, and returns their ids."""

    async def release(self, keys: Sequence[LeaseKey], after: float | None = None) -> int:
        """Release leased receipts that were not started. The attempts do not count. Returns how many were held.

        With `after`, they are due again in `after` seconds.
        """

    async def release_strays(self, worker: str, held: Collection[int]) -> int:
        """Release the receipts that `worker` has leased, except those in `held`. Returns how many were released.

        A worker does not know of a receipt that it leased if the reply of the database was lost.
        """

    async def expired(self, limit: int, after: int) -> list[ExpiredReceipt]:
        """Return receipts whose lease has expired and whose id is greater than `after`, in the order of ids."""

    async def abandon_inline(self, reason: str) -> list[AbandonedReceipt]:
        """Turn inline receipts whose provider has stopped retrying into dead letters.

        Sets `last_error` to `reason`, followed by the error of the last attempt.
        """

    async def end_sessions(self, worker: str, begun_before: float = 0.0) -> int:
        """End the sessions that a dead worker left, if they began that long ago. Returns how many were ended."""

    async def next_due(self, handled: Handled | None = None) -> float | None:
        """Return the seconds until the next receipt is due (negative: overdue), or None if none is waiting."""


class QueueStore(Protocol):
    """Receipts that go to a queue of workers."""

    async def copies(self, receipts: Sequence[int]) -> list[QueuedReceipt]:
        """Return the receipts that consumers other than `main` have of the events with these receipts."""

    async def overdue(self, consumer: str, seconds: float, most: float | None = None) -> list[QueuedReceipt]:
        """Return receipts that have been due for `seconds` without a lease, and at most for `most` seconds."""

    async def fail(self, receipts: Sequence[GivenUp], reason: str) -> list[AbandonedReceipt]:
        """Make dead letters of waiting receipts. Returns those that it changed.

        A receipt that a worker has leased, or that was replayed since, is not changed.
        """


class PauseStore(Protocol):
    """Paused sources and consumers."""

    async def pause(
        self, source: str, actor: str, *, consumer: str = "", reason: str | None = None, seconds: float | None = None
    ) -> bool:
        """Pause a source in all processes and record the actor. Returns False if it was paused already.

        With `consumer` and an empty source, pause a consumer with all its sources.

        With `seconds`, the pause ends after that time: the next worker that refreshes its pauses resumes the source.
        """

    async def resume(self, source: str, actor: str, *, consumer: str = "") -> bool:
        """Resume a source and record the actor. Returns False if it was not paused."""

    async def active(self) -> list[Pause]:
        """Return the pauses that are in force."""


class RateStore(Protocol):
    """Token buckets of consumers with a rate, shared by all processes."""

    async def take(self, consumer: str, wanted: int, rate: float, burst: float) -> Tokens:
        """Take up to `wanted` tokens. The bucket gets `rate` tokens a second and holds at most `burst`, at least 1.

        A new bucket is full. If the reply is lost, the tokens are lost too, and the bucket fills up again.
        """

    async def refund(self, consumer: str, tokens: int, burst: float) -> None:
        """Return tokens that were not used. The bucket never holds more than `burst`."""


class DueTimeStore(Protocol):
    """Due times of everything that waits."""

    async def correct(self) -> int:
        """Correct the times of a clock that has gone back since. Returns how many retries and pauses were wrong."""


class RosterStore(Protocol):
    """The roster: live workers and the patterns they handle."""

    async def register(self, worker: str, handled: Mapping[str, Handled]) -> None:
        """Register a process with the patterns of each consumer, replacing earlier ones. It is live for one minute."""

    async def renew(self, worker: str) -> bool:
        """Keep a registration live for another minute. Returns False if the process is not registered."""

    async def live_handlers(self) -> list[LiveHandler]:
        """Return the patterns of the live processes."""

    async def waiting_types(
        self, consumer: str, after: WindowPosition | None, size: int, *, serial: bool
    ) -> tuple[list[EventType], WindowPosition | None, bool]:
        """Return the types in the next window of `size` due receipts, the end of the window, and whether it is full.

        With `serial`, the window is over receipts with a serial key, due or not, in the order of keys.
        """

    async def hold_unhandled(
        self, consumer: str, types: Sequence[EventType], window: Window, size: int, *, serial: bool
    ) -> Counter[EventType]:
        """Hold the receipts of these types in a window until `release_unhandled`. Returns how many of each type."""

    async def unhandled_types(self, consumer: str, most: int) -> list[EventType]:
        """Return up to `most` types of a consumer that have held receipts."""

    async def release_unhandled(self, consumer: str, type_: EventType, size: int) -> int:
        """Let workers lease up to `size` held receipts of a type, the oldest first. Returns how many were released."""

    async def ignore_unhandled(self, consumer: str, type_: EventType, reason: str, *, seconds: float, size: int) -> int:
        """Ignore up to `size` receipts of a type that were held for `seconds`. Returns how many were ignored.

        Does nothing if a process has registered within the last minute.
        """

    async def unhandled(self) -> list[Unhandled]:
        """Return, for each source and consumer, how many receipts are held and since when."""


class DirectoryStore(Protocol):
    """Settings that are in the database: consumers, and the sources and tenants that Oncehook manages."""

    async def revision(self) -> int:
        """Return the number of the last change."""

    async def sources(self, after: int = -1) -> list[ManagedSource]:
        """Return the managed sources that changed after a revision, also the removed ones."""

    async def change_source(self, name: str, actor: str, change: SourceChange) -> int:
        """Write a managed source and audit the actor, in one transaction. Returns the revision.

        `change` gets the current row. No other change commits between its call and the end of the transaction.
        """

    async def tenant(self, source: str, tenant: str) -> ManagedTenant | None:
        """Return a managed tenant, also a removed one, or None if it never existed."""

    async def tenants(self, source: str, *, search: str = "", after: str = "", limit: int) -> list[ManagedTenant]:
        """Return the tenants of a source that begin with `search` and come after `after`, in the order of names."""

    async def changed_tenants(self, after: int, limit: int) -> list[ChangedTenant]:
        """Return up to `limit` tenants that changed after a revision, also removed ones, in the order of revisions."""

    async def change_tenant(self, source: str, tenant: str, actor: str, change: TenantChange) -> int:
        """Write a managed tenant and audit the actor, in one transaction. Returns the revision.

        `change` gets the current row. No other change commits between its call and the end of the transaction.
        """

    async def sealing_keys(self) -> set[str]:
        """Return the ids of the keys that sealed the secrets of managed sources and tenants."""


class ConsumerStore(Protocol):
    """Consumers other than `main`: durable subscriptions, which stay until a person removes them."""

    async def all(self) -> list[StoredConsumer]:
        """Return all subscriptions."""

    async def of_main(self) -> list[StoredConsumer]:
        """Return the patterns of `main`, for sources that have other consumers too."""

    async def register(
        self,
        patterns: Mapping[tuple[str, str], Sequence[str]],
        settings: Mapping[str, Mapping[str, Any]],
        *,
        overwrite: bool = True,
    ) -> bool:
        """Register the consumers of a process. Returns whether a subscription changed.

        `patterns` has the type patterns of each (consumer, source), `settings` the settings of each consumer. Patterns
        are added to those of other processes. With `overwrite`, the settings replace earlier ones. A consumer whose
        setting `paused` appeared is paused, and one whose setting is gone is resumed.
        """

    async def open_receipts(self, name: str, most: int) -> dict[str, int]:
        """Count the unfinished receipts and dead letters of a consumer by status, up to `most` of each."""

    async def remove(self, name: str, actor: str) -> list[str]:
        """Remove the subscriptions, handlers, rate and pause of a consumer. Returns the sources that it had."""

    async def end_receipts(self, name: str, reason: str, size: int) -> int:
        """Ignore up to `size` unfinished receipts and dead letters of a consumer. Returns how many.

        Their running handlers lose the lease and are rolled back. Receipts that are settled at this moment are skipped.
        """


class SchemaStore(Protocol):
    """The tables."""

    async def pending(self) -> list[tuple[int, str, str]]:
        """Return (number, name, SQL) of each migration that was not applied yet."""

    async def migrate(self) -> list[str]:
        """Apply the pending migrations in one transaction, under a lock. Returns their names."""

    async def move_times_back(self, seconds: float) -> None:
        """Move every recorded time back, for tests. Nothing else may use the database during the call."""
