"""Writes counts to the database every FLUSH_SECONDS: uses of secrets, rejected deliveries, ack latencies.

Counting in memory keeps these writes off the hot path.
"""

import asyncio
from collections import Counter

from oncehook.observability import signals
from oncehook.observability.receiver_stats import ReceiverStats
from oncehook.providers.source import Source
from oncehook.store.operator_protocols import AlertStore, RejectionStore

FLUSH_SECONDS = 10.0
"""Seconds between two writes."""


class PeriodicWriter:
    """Calls `write` every FLUSH_SECONDS, and once more when it stops."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_writing())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.write()

    async def _keep_writing(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.write()

    async def write(self) -> None:
        raise NotImplementedError


class SecretUseWriter(PeriodicWriter):
    """Writes how many deliveries each secret of a source has verified."""

    def __init__(self, store: RejectionStore, sources: dict[str, Source]) -> None:
        self.store = store
        self.sources = sources

    async def write(self) -> None:
        """Add the counts since the last write. If the write fails, the counts stay for the next one."""
        counted = [
            (source, index, count) for source in self.sources.values() for index, count in enumerate(source.uses)
        ]
        uses = {(source.name, source.fingerprints[index]): count for source, index, count in counted if count}
        if not uses:
            return
        try:
            await self.store.note_secrets(uses)
        except Exception as error:
            signals.emit("secret_uses_write_failed", detail=type(error).__name__)
        else:
            for source, index, count in counted:
                source.uses[index] -= count


class RejectionCountWriter(PeriodicWriter):
    """Writes how many deliveries were rejected, so that the database has the total of all processes."""

    def __init__(self, store: AlertStore, stats: ReceiverStats) -> None:
        self.store = store
        self.stats = stats

    async def write(self) -> None:
        """Add the counts since the last write. If the write fails, the counts are added to the next one."""
        counts, self.stats.unwritten_rejections = self.stats.unwritten_rejections, Counter()
        if not counts:
            return
        try:
            await self.store.note_rejections(counts)
        except Exception as error:
            self.stats.unwritten_rejections.update(counts)
            signals.emit("rejection_counts_write_failed", detail=type(error).__name__)


class AckLatencyWriter(PeriodicWriter):
    """Writes how long acks took, so that the overview of any process shows the latencies of all."""

    def __init__(self, store: AlertStore, stats: ReceiverStats) -> None:
        self.store = store
        self.stats = stats

    async def write(self) -> None:
        """Add the counts since the last write. If the write fails, the counts are added to the next one."""
        counts, self.stats.unwritten_acks = self.stats.unwritten_acks, Counter()
        if not counts:
            return
        try:
            await self.store.note_acks(counts)
        except Exception as error:
            self.stats.unwritten_acks.update(counts)
            signals.emit("ack_latency_write_failed", detail=type(error).__name__)
