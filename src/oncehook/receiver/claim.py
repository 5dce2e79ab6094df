"""Group commit: claims that arrive while a commit is under way share the next statement and its fsync.

An idle door adds no delay: the first claim starts its commit at once. Results go to exactly the waiters whose claims
they are. A waiter that is cancelled loses only its answer: its claim goes on, and its neighbours are not touched.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import IntakeFull, KeyTaken, RowRefused, StoreUnavailable, Unavailable
from oncehook.store.protocols import ClaimStore

MOST_IN_A_BATCH = 500
MOST_BYTES_IN_A_BATCH = 8 * 2**20
Observe = Callable[[Sequence[tuple[Claim, Claimed]]], None]


class DirectWaiter:
    """What a coroutine awaits that runs without a task: whoever runs it is called in the moment of the commit.

    A future would call it in the next round of the event loop, which costs each event a few microseconds.
    """

    __slots__ = ("_call", "_error", "_result")

    def __init__(self) -> None:
        self._result: list[Claimed] | None = None
        self._error: Unavailable | None = None
        self._call: Callable[[DirectWaiter], None] | None = None

    def done(self) -> bool:
        return self._result is not None or self._error is not None

    def add_done_callback(self, call: "Callable[[DirectWaiter], None]") -> None:
        self._call = call

    def set_result(self, result: list[Claimed]) -> None:
        self._result = result
        self._resume()

    def set_exception(self, error: Unavailable) -> None:
        self._error = error
        self._resume()

    def _resume(self) -> None:
        if self._call is not None:
            self._call(self)

    def __await__(self) -> "Generator[DirectWaiter, None, list[Claimed]]":
        yield self
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result


class Group:
    """The events of one delivery, which are claimed in one transaction, and who waits for them."""

    __slots__ = ("asked", "bytes", "claims", "waiter")

    def __init__(
        self, claims: Sequence[Claim], waiter: "asyncio.Future[list[Claimed]] | DirectWaiter", asked: float
    ) -> None:
        self.claims = claims
        self.waiter = waiter
        self.asked = asked
        self.bytes = len(claims[0].body) if len(claims) == 1 else sum(len(claim.body) for claim in claims)


class Claimer:
    """Takes claims and answers each when its commit is durable."""

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
        self.loop: asyncio.AbstractEventLoop | None = None  # known: asking for it is a system call in Python 3.11
        self._waiting: deque[Group] = deque()
        self._events = 0
        self._bytes = 0
        self._flushing = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        """What became of each claim, once that is durable.

        Raises Unavailable if it cannot be recorded now, and IntakeFull at once if too many wait.
        """
        if not claims:
            return []
        loop = self.loop or asyncio.get_running_loop()
        runs_in_task = asyncio.current_task(loop) is not None  # a task awaits futures only
        waiter: asyncio.Future[list[Claimed]] | DirectWaiter = loop.create_future() if runs_in_task else DirectWaiter()
        group = Group(claims, waiter, self.clock.monotonic())
        # A group larger than the whole intake is let in when nothing else waits, or it could never be.
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
        """Wait until nothing is waiting or under way."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _flush(self) -> None:
        """Commit batches until none waits. Nothing is awaited between that and giving up the place."""
        try:
            while self._waiting:
                await self._flush_batch(self._take())
        finally:
            self._flushing -= 1

    async def _flush_batch(self, groups: list[Group]) -> None:
        try:
            await self._commit(groups)
        finally:
            for group in groups:
                self._events -= len(group.claims)
                self._bytes -= group.bytes
                if not group.waiter.done():  # only if this task itself is being cancelled
                    group.waiter.set_exception(StoreUnavailable("the inbox is stopping"))

    def _take(self) -> list[Group]:
        """The next batch: whole groups, at least one."""
        groups = [self._waiting.popleft()]
        events, size = len(groups[0].claims), groups[0].bytes
        while self._waiting:
            events += len(self._waiting[0].claims)
            size += self._waiting[0].bytes
            if events > MOST_IN_A_BATCH or size > MOST_BYTES_IN_A_BATCH:
                break
            groups.append(self._waiting.popleft())
        return groups

    async def _commit(self, groups: list[Group]) -> None:
        late = self.clock.monotonic() - self.timeout
        if groups[0].asked < late:  # the oldest is first
            for group in groups:
                if group.asked < late and not group.waiter.done():
                    group.waiter.set_exception(StoreUnavailable("the event waited too long for its commit"))
            groups = [group for group in groups if group.asked >= late]
        if groups:
            await self._commit_together(groups)

    async def _commit_together(self, groups: list[Group]) -> None:
        """One statement for all. If the database refuses a row, the halves go apart until it fails alone."""
        claims = [claim for group in groups for claim in group.claims]
        try:
            results = await self._claim_each(claims)
        except RowRefused as error:
            if len(groups) == 1 and isinstance(error, KeyTaken):
                await self._commit_singly(groups[0])
                return
            if len(groups) == 1:
                _fail(groups, error)
                return
            half = len(groups) // 2
            await self._commit_together(groups[:half])
            await self._commit_together(groups[half:])
        except Unavailable as error:
            _fail(groups, error)
        except Exception as error:  # a bug of ours must not leave a sender without an answer
            _fail(groups, StoreUnavailable(f"the store failed: {error!r}"))
        else:
            start = 0
            for group in groups:
                end = start + len(group.claims)
                if not group.waiter.done():
                    group.waiter.set_result(results[start:end])
                start = end
            with suppress(Exception):  # a full log disk is not the sender's trouble
                self.observe(list(zip(claims, results, strict=True)))

    async def _commit_singly(self, group: Group) -> None:
        """Where an event's other keys are taken, the receipt that has them answers for it."""
        try:
            results = [await self.store.insert_or_find(claim) for claim in group.claims]
        except Unavailable as error:
            _fail([group], error)
            return
        if not group.waiter.done():
            group.waiter.set_result(results)
        with suppress(Exception):  # as above
            self.observe(list(zip(group.claims, results, strict=True)))

    async def _claim_each(self, claims: list[Claim]) -> list[Claimed]:
        """What became of each, where of those with the same id the first is offered for all.

        They are offered in order of arrival: receipts are numbered in it, and serial keys go by it.
        """
        keys = [(claim.source, claim.event_id) for claim in claims]
        first = dict(zip(reversed(keys), reversed(claims), strict=True))
        if len(first) == len(claims):  # nearly always: nobody races with a twin
            return await self.store.insert(claims)
        offered = list(dict.fromkeys(keys))
        outcomes = dict(zip(offered, await self.store.insert([first[key] for key in offered]), strict=True))
        return [_result(claim, first[key], outcomes[key]) for key, claim in zip(keys, claims, strict=True)]


def _result(claim: Claim, first: Claim, outcome: Claimed) -> Claimed:
    if claim is first:
        return outcome
    # It raced with its own twin in this very batch, and the twin was first.
    return Claimed(
        outcome.receipt,
        False,
        outcome.status,
        outcome.stored_fingerprint,
        claim.fingerprint == outcome.stored_fingerprint,
    )


def _fail(groups: Sequence[Group], error: Unavailable) -> None:
    for group in groups:
        if not group.waiter.done():
            group.waiter.set_exception(error)
