"""Leases the receipts that the messages of a queue name.

A message stays in the queue, invisible, while its receipt is leased, and is deleted after the commit. The database is
queried directly only in these cases: another process announced work, the queue does not respond, more messages arrived
than fit, a receipt that waits for its time has no message, and once every QUEUE_POLL seconds.

The queue counts how often it delivers a message, and gives up. A receipt that is postponed without an attempt therefore
keeps no message: it would become a dead letter although it was hardly tried.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.errors import Unavailable
from oncehook.model.lease import Leased, Settled
from oncehook.model.rows import ListedReceipt
from oncehook.model.states import State
from oncehook.store.serial import Key
from oncehook.worker.feed import DatabaseFeed
from oncehook.worker.queue.ends import MessageEnds
from oncehook.worker.queue.health import QueueHealth
from oncehook.worker.queue.message import End, QueueMessage, end_of
from oncehook.worker.wakeups import no_announcement

QUEUE_POLL = 60.0
"""Seconds between two queries of the database by a worker whose queue responds."""

STEP = 0.1
"""Seconds between two queries for receipts that become due, at least."""

MAX_QUARANTINED = 10
"""How many messages of rescued receipts a worker holds. Further ones are delivered again later."""


class QueueFeed:
    """Implements `Feed` for one consumer."""

    def __init__(
        self,
        database: DatabaseFeed,
        ends: MessageEnds,
        health: QueueHealth,
        *,
        capacity: int,
        announce: Callable[[], None] = no_announcement,
        clock: Clock = SYSTEM,
    ) -> None:
        self.database = database
        self.capacity = capacity
        self.ready: Callable[[], None] = no_announcement  # the worker can lease
        self.has_taken: Callable[[], None] = no_announcement  # there is room for more messages
        self._ends = ends
        self._health = health
        self._announce = announce
        self._clock = clock
        self._arrived: deque[QueueMessage] = deque()
        self._quarantined: deque[QueueMessage] = deque()
        self._keys: dict[Key, None] = {}  # serial keys whose receipt has ended: their next one may be due
        self._held: dict[int, QueueMessage | None] = {}  # receipts that are leased and not settled, and their messages
        self._is_woken = False  # query the database until nothing is due there
        self._may_have_rescued = False  # the database may have receipts whose last worker died
        self._next_poll = 0.0
        self._looks: set[int] = set()  # the planned queries for receipts that become due, in STEPs of the clock

    # -- messages -------------------------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        return len(self._arrived) < self.capacity

    @property
    def messages(self) -> list[QueueMessage]:
        """The messages that this worker has."""
        held = [message for message in self._held.values() if message is not None]
        return [*self._arrived, *self._quarantined, *held]

    def add(self, message: QueueMessage, *, is_alone: bool) -> None:
        """Take a message. If too many wait, and others need the queue too, lease from the database instead."""
        if self.has_room or is_alone:
            self._arrived.append(message)
        else:
            self._ends.delete(message)
            self._is_woken = True

    def close(self) -> None:
        """Return the messages whose receipts are not leased."""
        for message in (*self._arrived, *self._quarantined):
            self._ends.return_after(message, 0.0)
        self._arrived.clear()
        self._quarantined.clear()

    # -- the worker -----------------------------------------------------------------------------------------------

    def room(self, wanted: int) -> int:
        if self._must_query:
            return wanted
        return min(wanted, len(self._arrived) + len(self._keys) + len(self._quarantined) + self._may_have_rescued)

    def seconds_left(self) -> float:
        if self._health.failing_since is not None:
            return self.database.poll
        return max(self._next_poll - self._clock.monotonic(), self.database.poll)

    def wake(self) -> None:
        self._is_woken = True

    @property
    def _must_query(self) -> bool:
        """Whether to query the database for due receipts."""
        return self._is_woken or self._health.is_down or self._clock.monotonic() >= self._next_poll

    async def take(self, limit: int, *, rescued: bool = False) -> list[Leased]:
        leased = await (self._take_rescued() if rescued else self._take(limit))
        for receipt in leased:
            self._held.setdefault(receipt.receipt, None)
        return leased

    async def _take(self, limit: int) -> list[Leased]:
        leased = await self._take_keys(limit)
        messages = [self._arrived.popleft() for _ in range(min(limit - len(leased), len(self._arrived)))]
        leased += await self._take_listed(messages)
        self.has_taken()
        if len(leased) < limit and self._must_query:
            leased += await self._query(limit - len(leased))
        return leased

    async def _take_rescued(self) -> list[Leased]:
        if self._quarantined:
            return await self._take_listed([self._quarantined.popleft()], rescued=True)
        leased = await self.database.take(1, rescued=True) if self._may_have_rescued or self._must_query else []
        self._may_have_rescued = bool(leased)
        return leased

    async def _query(self, limit: int) -> list[Leased]:
        leased = await self.database.take(limit)
        self._is_woken &= len(leased) == limit  # more may be due
        self._may_have_rescued = True
        self._next_poll = self._clock.monotonic() + QUEUE_POLL
        return leased

    async def _take_keys(self, limit: int) -> list[Leased]:
        """Lease the next receipts of serial keys, whose messages may have arrived while the key was not free."""
        handled = self.database.handled()
        if not self._keys or not handled:
            return []
        keys = list(self._keys)[:limit]
        leased = await self.database.leases.take_keys(
            keys, self.database.lease_seconds, self.database.worker, skip_failed=self.database.skip_failed,
            handled=handled,
        )  # fmt: skip
        for key in keys:
            self._keys.pop(key, None)
        return leased

    async def _take_listed(self, messages: Sequence[QueueMessage], *, rescued: bool = False) -> list[Leased]:
        """Lease the receipts of messages, and end the deliveries of the others."""
        named = self._without_copies(messages)
        handled = self.database.handled()
        if not named:
            return []
        try:
            leased, states = await self.database.leases.take_listed(
                list(named), self.database.lease_seconds, self.database.worker, rescued=rescued,
                skip_failed=self.database.skip_failed, handled=handled,
            )  # fmt: skip
        except Unavailable:
            self._arrived.extendleft(reversed(named.values()))
            raise
        for receipt in leased:
            message = named.pop(receipt.receipt, None)
            if message is not None:
                self._held[receipt.receipt] = message
        for receipt_id, message in named.items():
            self._end(message, states.get(receipt_id))
        return leased

    def _without_copies(self, messages: Sequence[QueueMessage]) -> dict[int, QueueMessage]:
        """Return one message of each receipt that is not leased here, and delete copies."""
        named: dict[int, QueueMessage] = {}
        for message in messages:
            if message.receipt in named or self._held.get(message.receipt) is not None:
                self._ends.delete(message)
            elif message.receipt in self._held:  # it was leased without a message
                self._held[message.receipt] = message
            else:
                named[message.receipt] = message
        return named

    def _end(self, message: QueueMessage, row: ListedReceipt | None) -> None:
        """End the delivery of a message whose receipt was not leased."""
        end = end_of(message, row, self.database.lease_seconds)
        if isinstance(end, float):
            self._ends.return_after(message, end)
        elif end is End.DEAD_LETTER:
            self._ends.dead_letter(message)
        elif end is End.QUARANTINE and len(self._quarantined) < MAX_QUARANTINED:
            self._quarantined.append(message)
        elif end is End.QUARANTINE:
            self._ends.return_after(message, self.database.lease_seconds)
        else:
            self._ends.delete(message)
            if end is End.ELSEWHERE:
                self._announce()
            elif end is End.LATER and row is not None and row.due_in is not None:
                self._look_after(row.due_in)

    # -- attempts -------------------------------------------------------------------------------------------------

    def settled(self, leased: Leased, settled: Settled, landed: bool) -> None:
        if leased.receipt not in self._held:
            return  # an inline attempt, which the provider repeats
        message = self._held.pop(leased.receipt)
        if not landed:
            return  # another worker has the receipt; the queue delivers the message again after its visibility
        if leased.serial_key is not None and settled.after is None:
            self._keys[leased.source, leased.serial_key] = None
            self.ready()
        if message is None:
            if settled.after is not None:
                self._look_after(settled.after)
        elif settled.after is not None:
            self._ends.return_after(message, settled.after)  # rounded up, so not before the receipt is due
        elif settled.status is State.FAILED:
            self._ends.dead_letter(message)
        else:
            self._ends.delete(message)

    def postponed(self, receipts: Iterable[int], after: float) -> None:
        """Delete the messages, so that the queue does not count deliveries that led to no attempt.

        If this process dies, the sweep sends the receipts again.
        """
        held = [receipt for receipt in receipts if receipt in self._held]
        for message in map(self._held.pop, held):
            if message is not None:
                self._ends.delete(message)
        if held:
            self._look_after(after)

    def _look_after(self, seconds: float) -> None:
        """Query the database in `seconds`, when a receipt without a message is due. Close times share a query."""
        now = self._clock.monotonic()
        step = math.ceil((now + seconds) / STEP)
        if step not in self._looks:
            self._looks.add(step)
            asyncio.get_running_loop().call_later(step * STEP - now, self._look, step)

    def _look(self, step: int) -> None:
        self._looks.discard(step)
        self._is_woken = True
        self.ready()

    def ended(self, receipts: Iterable[int]) -> None:
        for receipt in receipts:
            message = self._held.pop(receipt, None)
            if message is not None:
                self._ends.return_after(message, 0.0)
