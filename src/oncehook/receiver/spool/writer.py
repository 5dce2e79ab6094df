"""Appends deliveries to a segment. Deliveries that arrive during a write share the next one and its fsync."""

import asyncio
from collections.abc import Sequence

from oncehook.concurrency.batches import Batches
from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import StoreUnavailable, Unavailable
from oncehook.observability import signals
from oncehook.receiver.claim import Waiter
from oncehook.receiver.spool.directory import Segment, SpoolDirectory
from oncehook.receiver.spool.record import encode

SEGMENT_BYTES = 8 * 2**20
"""From this size on, a segment takes no more deliveries."""

MEASURE_SECONDS = 1.0
"""How often the size of the folder is measured while deliveries are written. Other processes write there too."""


class SpooledDelivery:
    """A delivery that waits to be written, and the error that its sender gets if it cannot be."""

    __slots__ = ("claims", "error", "is_added", "waiter")

    def __init__(self, claims: Sequence[Claim], waiter: Waiter[list[Claimed]]) -> None:
        self.claims = claims
        self.waiter = waiter
        self.error: Unavailable = StoreUnavailable("the spool cannot be written")
        self.is_added = False

    def accept(self) -> None:
        """Give the results of its claims: they have no receipt yet."""
        if not self.waiter.done():
            self.waiter.set_result([Claimed(0, True, claim.status, claim.fingerprint) for claim in self.claims])

    def reject(self) -> None:
        if not self.waiter.done():
            self.waiter.set_exception(self.error)


class SpoolWriter:
    """Writes deliveries to segments of this process, up to `limit` bytes in the folder."""

    def __init__(self, directory: SpoolDirectory, limit: int, clock: Clock = SYSTEM) -> None:
        self.directory = directory
        self.limit = limit
        self._clock = clock
        self._batches: Batches[SpooledDelivery] = Batches(self._write, size=500)
        self._lock = asyncio.Lock()
        self._segment: Segment | None = None
        self._sealed: list[Segment] = []
        self._measured = 0
        self._measured_at = float("-inf")
        self.is_full = False

    def add(self, delivery: SpooledDelivery) -> None:
        """Write a delivery once. It is accepted after the fsync, or rejected if that failed or the spool is full."""
        if not delivery.is_added:
            delivery.is_added = True
            self._batches.add(delivery)

    async def take_sealed(self, *, seal: bool = True) -> list[Segment]:
        """Return the segments of this process that get no more deliveries. The caller owns them.

        With `seal`, this includes the one that it appends to. The next delivery begins another.
        """
        async with self._lock:  # not during a write
            if seal:
                self._seal()
            sealed, self._sealed = self._sealed, []
            return sealed

    def requeue(self, segments: Sequence[Segment]) -> None:
        """Return segments that could not be claimed now. Their locks are kept."""
        self._sealed = [*segments, *self._sealed]

    async def close(self) -> None:
        """Finish the writes, and release all segments, so that another process can claim them."""
        await self._batches.drain()
        for segment in await self.take_sealed():
            segment.close()

    def _seal(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            self._sealed.append(segment)

    async def _write(self, deliveries: list[SpooledDelivery]) -> None:
        async with self._lock:
            written = await self._append_safely(deliveries)
        accepted = set(map(id, written))
        for delivery in deliveries:
            if id(delivery) in accepted:
                delivery.accept()
            else:
                delivery.reject()
        for delivery in written:
            signals.record_spooled(delivery.claims)

    async def _append_safely(self, deliveries: Sequence[SpooledDelivery]) -> list[SpooledDelivery]:
        try:
            return await asyncio.to_thread(self._append, deliveries)
        except OSError as error:
            signals.emit("spool_write_failed", detail=error.strerror or type(error).__name__)
        except Exception as error:  # a bug: every sender still gets a response
            signals.log_background_failure("spool", error)
        self._abandon()
        return []

    def _append(self, deliveries: Sequence[SpooledDelivery]) -> list[SpooledDelivery]:
        """Write as many deliveries as fit, with one fsync, and return them. Runs in a thread."""
        room, written, parts = self.limit - self._bytes(), list[SpooledDelivery](), list[bytes]()
        for delivery in deliveries:
            record = encode(delivery.claims)
            room -= len(record)
            if room < 0:
                break
            written.append(delivery)
            parts.append(record)
        self._note_full(len(written) < len(deliveries))
        if written:
            if self._segment is not None and self._segment.size >= SEGMENT_BYTES:
                self._seal()
            if self._segment is None:
                self._segment = self.directory.create()
            data = b"".join(parts)
            self._segment.append(data)
            self._measured += len(data)
        return written

    def _bytes(self) -> int:
        now = self._clock.monotonic()
        if now - self._measured_at >= MEASURE_SECONDS or self.is_full:
            self._measured, self._measured_at = self.directory.bytes(), now
        return self._measured

    def _note_full(self, is_full: bool) -> None:
        if is_full and not self.is_full:
            signals.emit("spool_full", bytes=self._measured, limit=self.limit)
        self.is_full = is_full

    def _abandon(self) -> None:
        """Append nothing after a failed write: its end may be torn. What it has before that is claimed later."""
        self._seal()
        self._measured_at = float("-inf")
