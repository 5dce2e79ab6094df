"""The spool, as a part of a running inbox."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import ConfigurationError
from oncehook.observability import signals
from oncehook.observability.metrics import Key
from oncehook.providers.source import Source
from oncehook.receiver.claim import Claimer, ClaimStep
from oncehook.receiver.spool.directory import SpoolDirectory
from oncehook.receiver.spool.drain import Drain
from oncehook.receiver.spool.step import SpoolStep
from oncehook.receiver.spool.writer import SpoolWriter

if TYPE_CHECKING:
    from oncehook.runtime import Runtime

SHORT = 24 * 3600.0
"""A provider that stops retrying earlier than this loses events in a long outage, so its deliveries are spooled."""


def spools(source: Source) -> bool:
    """Whether deliveries to a source are spooled: by its setting, else if its provider stops retrying soon."""
    if source.inline or source.settings.intake is not None:
        return False
    if source.settings.spool is not None:
        return source.settings.spool
    retries = source.provider.retries_for
    return retries is None or retries < SHORT


class SpoolPart:
    """Wraps the claims of the receiver while the inbox runs, and claims what the spool has."""

    def __init__(self, runtime: "Runtime", folder: str) -> None:
        settings = runtime.settings
        self._runtime = runtime
        self.directory = SpoolDirectory(Path(folder))
        self.writer = SpoolWriter(self.directory, settings.spool_limit, runtime.clock)
        self._claimer = Claimer(
            runtime.store.claims,
            observe=self._observe,
            limit=settings.intake_limit,
            limit_bytes=settings.intake_bytes,
            timeout=settings.claim_timeout,
            clock=runtime.clock,
        )
        self.step = SpoolStep(self._claimer, self.writer, self._spools)
        self._drain: Drain | None = None

    async def start(self) -> None:
        for name, source in self._runtime.sources.items():
            if source.settings.spool and source.inline:
                raise ConfigurationError(
                    f"sources.{name}.spool is true and its mode is inline: the handler of an inline event runs before "
                    f"the ack, which needs the database. Remove one of them"
                )
        self.directory.prepare()
        receiver = self._runtime.reception.receiver
        self.step.inner, receiver.claims = receiver.claims, self.step
        self._drain = Drain(self.directory, self.writer, self._make_claims(), resume=self.step.resume)
        self._runtime.readiness.spool = self
        self._runtime.metrics_exporter.gauges.append(self._read_gauges)
        self._drain.start()

    async def stop(self) -> None:
        drain, self._drain = self._drain, None
        if drain is None:
            return
        self._runtime.reception.receiver.claims = self.step.inner
        self._runtime.readiness.spool = None
        self._runtime.metrics_exporter.gauges.remove(self._read_gauges)
        await drain.stop()
        await self._claimer.drain()
        await self.writer.close()
        left = self.directory.events()
        if left:
            signals.emit("spool_left", events=left, folder=str(self.directory.folder))

    @property
    def accepts(self) -> bool:
        """Whether a delivery of a source that spools could be accepted without the database."""
        return not self.writer.is_full and any(map(spools, self._runtime.sources.values()))

    async def _read_gauges(self) -> dict[Key, float]:
        return {("oncehook_spool_events",): await asyncio.to_thread(self.directory.events)}

    def _make_claims(self) -> ClaimStep:
        """What a delivery of the spool goes through: not the receiver's step, so that duplicates are not recorded.

        With shards it is the receiver's step, which knows the shard of the source.
        """
        if self._runtime.shards is not None:
            return self.step.inner
        if self._runtime.settings.payload_store is None:
            return self._claimer
        from oncehook.runtime.large_payloads import offload_claims

        return offload_claims(self._runtime, self._claimer)

    def _spools(self, name: str) -> bool:
        source = self._runtime.sources.get(name)
        return source is not None and spools(source)

    def _observe(self, pairs: Sequence[tuple[Claim, Claimed]]) -> None:
        """Count and log new events. A duplicate may be a delivery that was claimed before a crash."""
        fresh = [(claim, claimed) for claim, claimed in pairs if claimed.fresh]
        if fresh:
            self._runtime.reception.observe(fresh)
