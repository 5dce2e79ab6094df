"""The receiver of an inbox with everything that it needs: the claimer behind it, and the logs of what it has seen."""

from collections.abc import Callable, Sequence

from oncehook.concurrency.clock import Clock
from oncehook.config.settings import Settings
from oncehook.model.claim import Claim, Claimed
from oncehook.observability import signals, tracing
from oncehook.observability.receiver_stats import ReceiverStats
from oncehook.providers.source import Source
from oncehook.receiver.asgi import AsgiReceiver
from oncehook.receiver.claim import Claimer
from oncehook.receiver.duplicates import DuplicateLog
from oncehook.receiver.rejections import AckLog, RefusalLog, RejectionLog, SecretLog
from oncehook.receiver.request import Reads
from oncehook.receiver.steps import Receiver
from oncehook.store.store import Store

Notify = Callable[[], None]


class Reception:
    """Takes deliveries for `sources` into `store`.

    `wake` is called after every commit, so that a worker of this process looks for work; `announce` after a commit with
    a new event, so that the workers of other processes do.
    """

    def __init__(
        self,
        store: Store,
        sources: dict[str, Source],
        settings: Settings,
        *,
        clock: Clock,
        wake: Notify,
        announce: Notify,
    ) -> None:
        self._wake = wake
        self._announce = announce
        self.duplicates = DuplicateLog(store.claims)
        self.claimer = Claimer(
            store.claims,
            observe=self._observe,
            limit=settings.intake_limit,
            limit_bytes=settings.intake_bytes,
            timeout=settings.claim_timeout,
            clock=clock,
        )
        self.stats = ReceiverStats(clock)
        self.rejections = RejectionLog(store.rejections)
        self.secrets = SecretLog(store.rejections, sources)
        self.refusals = RefusalLog(store.alerts, self.stats)
        self.acks = AckLog(store.alerts, self.stats)
        reads = Reads(time_limit=settings.receive_timeout, limit_bytes=settings.intake_bytes)
        self.receiver = Receiver(
            sources, self.claimer, self.rejections, limit_bytes=reads.limit_bytes, clock=clock, stats=self.stats
        )
        self.enter = AsgiReceiver(self.receiver, reads)

    def start(self) -> None:
        self.enter.start()
        tracing.start()
        self.secrets.start()
        self.refusals.start()
        self.acks.start()

    async def stop(self) -> None:
        """Write everything that waits to be written."""
        await self.claimer.drain()
        await self.duplicates.drain()
        await self.rejections.stop()
        await self.secrets.stop()
        await self.refusals.stop()
        await self.acks.stop()

    def _observe(self, pairs: Sequence[tuple[Claim, Claimed]]) -> None:
        for claim, outcome in pairs:
            if not outcome.fresh:
                self.duplicates.note(claim, outcome)
        self._wake()
        if any(outcome.fresh for _, outcome in pairs):
            self._announce()
        signals.record_claims(pairs)
