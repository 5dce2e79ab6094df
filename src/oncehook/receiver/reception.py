"""Builds the receiver of an inbox with its claimer and its background writers, and starts and stops them."""

from collections.abc import Callable, Sequence

from oncehook.concurrency.clock import Clock
from oncehook.config.settings import Settings
from oncehook.model.claim import Claim, Claimed
from oncehook.observability import signals, tracing
from oncehook.observability.receiver_stats import ReceiverStats
from oncehook.providers.source import Source
from oncehook.receiver.asgi import AsgiReceiver
from oncehook.receiver.claim import Claimer, Observe
from oncehook.receiver.count_writers import AckLatencyWriter, RejectionCountWriter, SecretUseWriter
from oncehook.receiver.duplicates import DuplicateLog
from oncehook.receiver.rejection_samples import RejectionSampleWriter
from oncehook.receiver.request import BodyReadLimits
from oncehook.receiver.steps import Receiver
from oncehook.store.store import Store
from oncehook.tenants.cache import TenantCache

Notify = Callable[[], None]


class Reception:
    """Receives deliveries for `sources` and claims their events in `store`.

    It calls `wake` after every commit, which wakes the worker of this process. It calls `announce` after a commit with
    a new event, which wakes the workers of other processes.
    """

    def __init__(
        self,
        store: Store,
        sources: dict[str, Source],
        settings: Settings,
        tenants: dict[str, TenantCache],
        *,
        clock: Clock,
        wake: Notify,
        announce: Notify,
    ) -> None:
        self._wake = wake
        self._announce = announce
        self.enqueue: Observe | None = None  # sends new events to a queue of workers, instead of waking them
        self.duplicates = DuplicateLog(store.claims)
        self.claimer = Claimer(
            store.claims,
            observe=self.observe,
            limit=settings.intake_limit,
            limit_bytes=settings.intake_bytes,
            timeout=settings.claim_timeout,
            clock=clock,
        )
        self.stats = ReceiverStats(clock)
        self.rejection_samples = RejectionSampleWriter(store.rejections)
        self.secret_uses = SecretUseWriter(store.rejections, sources)
        self.rejection_counts = RejectionCountWriter(store.alerts, self.stats)
        self.ack_latencies = AckLatencyWriter(store.alerts, self.stats)
        limits = BodyReadLimits(time_limit=settings.receive_timeout, limit_bytes=settings.intake_bytes)
        self.receiver = Receiver(
            sources,
            self.claimer,
            self.rejection_samples,
            limit_bytes=settings.intake_bytes,
            clock=clock,
            stats=self.stats,
            tenants=tenants,
        )
        self.tenants = tenants
        self.asgi = AsgiReceiver(self.receiver, limits)

    def start(self) -> None:
        self.asgi.start()
        tracing.start()
        self.secret_uses.start()
        self.rejection_counts.start()
        self.ack_latencies.start()

    async def stop(self) -> None:
        """Wait for running commits, and write everything that is queued."""
        for cache in self.tenants.values():
            await cache.stop()
        await self.claimer.drain()
        await self.duplicates.drain()
        await self.rejection_samples.stop()
        await self.secret_uses.stop()
        await self.rejection_counts.stop()
        await self.ack_latencies.stop()

    def observe(self, pairs: Sequence[tuple[Claim, Claimed]]) -> None:
        """Count and log results, note the duplicates, and wake the workers."""
        for claim, outcome in pairs:
            if not outcome.fresh:
                self.duplicates.note(claim, outcome)
        if self.enqueue is not None:
            self.enqueue(pairs)
        else:
            self._wake_workers(pairs)
        signals.record_claims(pairs)

    def _wake_workers(self, pairs: Sequence[tuple[Claim, Claimed]]) -> None:
        self._wake()
        if any(outcome.fresh for _, outcome in pairs):
            self._announce()
