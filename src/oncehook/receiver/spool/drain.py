"""Claims the deliveries of the spool when the database answers, and removes their segments.

A delivery is claimed under the same key as without the spool. If a process is killed between the commit and the removal
of the segment, its events are claimed again and are duplicates, which are not recorded as deliveries of their sender.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from oncehook.model.claim import Claim
from oncehook.model.errors import RowRefused, Unavailable
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.receiver.claim import ClaimStep
from oncehook.receiver.spool.directory import Segment, SpoolDirectory
from oncehook.receiver.spool.record import read
from oncehook.receiver.spool.writer import SpoolWriter

T = TypeVar("T")

INTERVAL = 1.0
"""Seconds between two attempts."""

AT_ONCE = 100
"""Deliveries that are claimed at the same time."""


class Drain:
    """Claims segments of this process, and of processes that have ended. `resume` is called when a claim succeeded."""

    def __init__(
        self, directory: SpoolDirectory, writer: SpoolWriter, claims: ClaimStep, *, resume: Callable[[], None]
    ) -> None:
        self._directory = directory
        self._writer = writer
        self._claims = claims
        self._resume = resume
        self._done: dict[Path, int] = {}  # segment → how many of its deliveries are claimed
        self._refused: Counter[Path] = Counter()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_draining())

    async def stop(self) -> None:
        """Stop after the claims that are under way. The rest stays in its segments."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep_draining(self) -> None:
        while True:
            try:
                await self.drain_once()
            except Exception as error:
                signals.log_background_failure("spool", error)
            await asyncio.sleep(INTERVAL)

    async def drain_once(self) -> bool:
        """Claim what can be claimed now. Returns whether nothing is left that this process could claim.

        The segment that this process appends to comes last. While the database is down, it is not touched.
        """
        if not await self._drain_segments(seal=False) or not await self._drain_segments(seal=True):
            return False
        self._resume()
        return True

    async def _drain_segments(self, *, seal: bool) -> bool:
        held = {segment.path: segment for segment in await self._writer.take_sealed(seal=seal)}
        drained = 0
        try:
            for path in self._directory.segments():
                if path not in held and (segment := self._directory.adopt(path)) is not None:
                    held[path] = segment
                if path not in held:
                    continue  # another process has it
                number = await self._drain(held[path])
                if number is None:
                    return False
                del held[path]
                drained += number
            return True
        finally:
            self._writer.requeue(list(held.values()))
            if drained:
                signals.emit("spool_drained", events=drained)
            reach(Checkpoint.SPOOL_DRAINED)

    async def _drain(self, segment: Segment) -> int | None:
        """Claim all deliveries of a segment and remove it. Returns the number of its events, None if it must wait."""
        contents = read(await asyncio.to_thread(segment.read))
        deliveries = contents.deliveries
        while (start := self._done.get(segment.path, 0)) < len(deliveries):
            batch = deliveries[start : start + AT_ONCE]
            refused = await self._claim(batch)
            if refused is None:
                return None
            self._resume()
            self._refused[segment.path] += refused
            self._done[segment.path] = start + len(batch)
        self._done.pop(segment.path, None)
        refused = self._refused.pop(segment.path, 0)
        if contents.torn:
            signals.emit("spool_tail_dropped", segment=segment.path.name, bytes=contents.torn)
        if contents.damaged or refused:
            kept = await _end(segment, self._directory.set_aside)
            signals.emit("spool_damaged", segment=kept.name, bytes=contents.damaged, refused=refused)
        else:
            await _end(segment, self._directory.remove)
        return sum(map(len, deliveries))

    async def _claim(self, deliveries: Sequence[list[Claim]]) -> int | None:
        """Claim deliveries. Returns how many events the database rejects, or None if it is unavailable."""
        refused = 0
        results = await asyncio.gather(*(self._claims.claim(claims) for claims in deliveries), return_exceptions=True)
        for claims, result in zip(deliveries, results, strict=True):
            if isinstance(result, RowRefused):
                refused += len(claims)  # no later claim could succeed, and it must not block the others
                for claim in claims:
                    signals.emit("spool_event_refused", source=claim.source, event_id=claim.event_id, type=claim.type)
            elif isinstance(result, Unavailable):
                return None
            elif isinstance(result, BaseException):
                raise result
        return refused


async def _end(segment: Segment, operation: Callable[[Segment], T]) -> T:
    """Remove or rename a segment in a thread. If this is cancelled, it still waits until the thread has closed it."""
    running = asyncio.ensure_future(asyncio.to_thread(operation, segment))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
