"""Group commit: claims that arrive while a commit is under way share the next statement and its fsync.

An idle receiver adds no delay: the first claim starts its commit immediately. Each waiter gets the results for the
claims that it submitted. A cancelled waiter loses only its result: its claim is still committed, and other claims
are not affected.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import IntakeFull, KeyTaken, RowRefused, StoreUnavailable, Unavailable
from oncehook.store.protocols import ClaimStore

MAX_BATCH_EVENTS = 500
MAX_BATCH_BYTES = 8 * 2**20
Observe = Callable[[Sequence[tuple[Claim, Claimed]]], None]
T = TypeVar("T")


class ClaimStep(Protocol):
    """The step of a delivery that records its events. Parts wrap the `Claimer` to answer some events without it."""

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        """Return the result of each claim once all of them are durable. Raises Unavailable if they cannot be."""


class ImmediateFuture(Generic[T]):
    """A future that calls its callback immediately when it gets its result.

    Coroutines that run without a task await it. An asyncio future would call back in the next iteration of the event
    loop, which costs each event a few microseconds.
    """

    __slots__ = ("_callback", "_error", "_result")

    def __init__(self) -> None:
        self._result: T | None = None
        self._error: Unavailable | None = None
        self._callback: Callable[[ImmediateFuture[T]], None] | None = None

    def done(self) -> bool:
        return self._result is not None or self._error is not None

    def add_done_callback(self, callback: "Callable[[ImmediateFuture[T]], None]") -> None:
        self._callback = callback

    def set_result(self, result: T) -> None:
        self._result = result
        self._resume()

    def set_exception(self, error: Unavailable) -> None:
        self._error = error
        self._resume()

    def _resume(self) -> None:
        if self._callback is not None:
            self._callback(self)

    def __await__(self) -> "Generator[ImmediateFuture[T], None, T]":
        yield self
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


Waiter = asyncio.Future[T] | ImmediateFuture[T]


def new_waiter(loop: asyncio.AbstractEventLoop) -> "asyncio.Future[T] | ImmediateFuture[T]":
    """Make what a delivery awaits for a result. A task awaits asyncio's futures only."""
    return loop.create_future() if asyncio.current_task(loop) is not None else ImmediateFuture()


class ClaimGroup:
    """The claims of one delivery, which are committed in one transaction, and the future that gets their results."""

    __slots__ = ("bytes", "claims", "submitted_at", "waiter")

    def __init__(self, claims: Sequence[Claim], waiter: "Waiter[list[Claimed]]", submitted_at: float) -> None:
        self.claims = claims
        self.waiter = waiter
        self.submitted_at = submitted_at
        self.bytes = len(claims[0].body) if len(claims) == 1 else sum(len(claim.body) for claim in claims)


class Claimer:
    """Commits claims in batches. Each caller gets its results when the commit is durable."""

    def __init__(
        self,
        store: ClaimStore,
        *,
        observe: Observe,
        limit: int,
        limit_bytes: int,
        timeout: float,
        clock: Clock = SYSTEM,
    ) -> None:
        self.store = store
        self.observe = observe
        self.limit = limit
        self.limit_bytes = limit_bytes
        self.timeout = timeout
        self.clock = clock
        self.loop: asyncio.AbstractEventLoop | None = None  # stored: looking it up is a system call in Python 3.11
        self._waiting: deque[ClaimGroup] = deque()
        self._events = 0
        self._bytes = 0
        self._flushing = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        """Commit claims and return the result of each, once the commit is durable.

        Raises Unavailable if they cannot be recorded now, and IntakeFull immediately if too many claims wait.
        """
        if not claims:
            return []
        loop = self.loop or asyncio.get_running_loop()
        waiter: Waiter[list[Claimed]] = new_waiter(loop)
        group = ClaimGroup(claims, waiter, self.clock.monotonic())
        # A group that is larger than the whole intake is accepted only when no other claim waits.
        full = self._events + len(claims) > self.limit or self._bytes + group.bytes > self.limit_bytes
        if full and self._events:
            raise IntakeFull("the intake is full", retry_after=2)
        self._waiting.append(group)
        self._events += len(claims)
        self._bytes += group.bytes
        if self._flushing < self.store.parallel:
            self._flushing += 1
            task = loop.create_task(self._flush())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await waiter

    async def drain(self) -> None:
        """Wait until every claim is committed or has failed."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _flush(self) -> None:
        """Commit batches until no claim waits.

        Do not `await` after the last check: a claim that arrives then would not be committed.
        """
        try:
            while self._waiting:
                await self._flush_batch(self._next_batch())
        finally:
            self._flushing -= 1

    async def _flush_batch(self, groups: list[ClaimGroup]) -> None:
        try:
            await self._commit(groups)
        finally:
            for group in groups:
                self._events -= len(group.claims)
                self._bytes -= group.bytes
                if not group.waiter.done():  # this task is being cancelled
                    group.waiter.set_exception(StoreUnavailable("the inbox is stopping"))

    def _next_batch(self) -> list[ClaimGroup]:
        """Remove the next batch from the queue: at least one group, and only whole groups."""
        groups = [self._waiting.popleft()]
        events, size = len(groups[0].claims), groups[0].bytes
        while self._waiting:
            events += len(self._waiting[0].claims)
            size += self._waiting[0].bytes
            if events > MAX_BATCH_EVENTS or size > MAX_BATCH_BYTES:
                break
            groups.append(self._waiting.popleft())
        return groups

    async def _commit(self, groups: list[ClaimGroup]) -> None:
        """Commit the groups that have not timed out, and fail the others."""
        earliest = self.clock.monotonic() - self.timeout
        if groups[0].submitted_at < earliest:  # the oldest is first
            for group in groups:
                if group.submitted_at < earliest and not group.waiter.done():
                    group.waiter.set_exception(StoreUnavailable("the event waited too long for its commit"))
            groups = [group for group in groups if group.submitted_at >= earliest]
        if groups:
            await self._commit_batch(groups)

    async def _commit_batch(self, groups: list[ClaimGroup]) -> None:
        """Commit all groups with one statement. If the database rejects a row, halve the batch to isolate its group."""
        claims = [claim for group in groups for claim in group.claims]
        try:
            results = await self._insert_unique(claims)
        except RowRefused as error:
            if len(groups) == 1 and isinstance(error, KeyTaken):
                await self._commit_one_by_one(groups[0])
                return
            if len(groups) == 1:
                _fail(groups, error)
                return
            half = len(groups) // 2
            await self._commit_batch(groups[:half])
            await self._commit_batch(groups[half:])
        except Unavailable as error:
            _fail(groups, error)
        except Exception as error:  # a bug in Oncehook: every sender still gets a response
            _fail(groups, StoreUnavailable(f"the store failed: {error!r}"))
        else:
            start = 0
            for group in groups:
                end = start + len(group.claims)
                if not group.waiter.done():
                    group.waiter.set_result(results[start:end])
                start = end
            with suppress(Exception):  # a failing log must not fail the delivery
                self.observe(list(zip(claims, results, strict=True)))

    async def _commit_one_by_one(self, group: ClaimGroup) -> None:
        """Commit each claim by itself. If another receipt has one of its unique keys, the claim is its duplicate."""
        try:
            results = [await self.store.insert_or_find(claim) for claim in group.claims]
        except Unavailable as error:
            _fail([group], error)
            return
        if not group.waiter.done():
            group.waiter.set_result(results)
        with suppress(Exception):  # as above
            self.observe(list(zip(group.claims, results, strict=True)))

    async def _insert_unique(self, claims: list[Claim]) -> list[Claimed]:
        """Insert the first claim of each event id, and return a result for every claim.

        Claims are inserted in order of arrival: receipt numbers and serial keys follow it.
        """
        keys = [(claim.source, claim.tenant, claim.event_id) for claim in claims]
        first = dict(zip(reversed(keys), reversed(claims), strict=True))
        if len(first) == len(claims):  # almost always: no event id occurs twice
            return await self.store.insert(claims)
        unique = list(dict.fromkeys(keys))
        outcomes = dict(zip(unique, await self.store.insert([first[key] for key in unique]), strict=True))
        return [_result(claim, first[key], outcomes[key]) for key, claim in zip(keys, claims, strict=True)]


def _result(claim: Claim, first: Claim, outcome: Claimed) -> Claimed:
    if claim is first:
        return outcome
    # The same event id is earlier in this batch, so this claim is a duplicate of it.
    return Claimed(
        outcome.receipt,
        False,
        outcome.status,
        outcome.stored_fingerprint,
        claim.fingerprint == outcome.stored_fingerprint,
    )


def _fail(groups: Sequence[ClaimGroup], error: Unavailable) -> None:
    for group in groups:
        if not group.waiter.done():
            group.waiter.set_exception(error)
