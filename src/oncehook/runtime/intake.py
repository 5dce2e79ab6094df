"""The intakes of a running inbox: the queues of its sources, what the receiver publishes, and what consumers claim."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from oncehook.intake.broker import Broker
from oncehook.intake.consumer import IntakeConsumer
from oncehook.intake.durability import durability_risk
from oncehook.intake.open_broker import open_broker
from oncehook.intake.publisher import IntakePublisher
from oncehook.intake.reader import MessageReader
from oncehook.intake.status import IntakeStatus, read_status
from oncehook.model.delivery import Delivery
from oncehook.model.errors import BrokerUnavailable, ConfigurationError, Rejected, Unavailable
from oncehook.objects.payload_objects import PayloadObjects
from oncehook.observability import signals
from oncehook.observability.metrics import Key
from oncehook.providers.source import Source

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


STATUS_EVERY = 5.0
"""Seconds for which the counts of the queues are shown again."""


class Intakes:
    """The part that connects sources with an `intake` to their brokers.

    Every process publishes the deliveries that it receives. Processes with a worker also claim from the queues.
    """

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self._brokers: dict[str, Broker] = {}
        self._statuses: tuple[float, list[IntakeStatus]] | None = None
        self.consumers: list[IntakeConsumer] = []

    async def start(self) -> None:
        runtime = self._runtime
        for source in runtime.sources.values():
            if source.settings.intake is not None:
                self._check_trust(source)
                self._brokers[source.name] = open_broker(source.settings.intake, source.name)
        for name, broker in self._brokers.items():
            try:
                await broker.start()
            except BrokerUnavailable as error:  # deliveries are claimed directly, and consumers try again
                signals.emit("intake_paused", source=name, queue=broker.name, detail=error.detail)
        runtime.reception.receiver.publisher = IntakePublisher(
            self._brokers,
            runtime.store.keys,
            objects=self._objects,
            limit_bytes=runtime.settings.intake_bytes,
            clock=runtime.clock,
        )
        runtime.metrics_exporter.gauges.append(self._gauges)
        if any(source.is_published for source in runtime.sources.values()):
            runtime.readiness.alternative = self._check_publishing
        if runtime.has_worker:
            self.consumers = [self._consumer(runtime.sources[name], broker) for name, broker in self._brokers.items()]
            for consumer in self.consumers:
                consumer.start()

    @property
    def _objects(self) -> PayloadObjects | None:
        """The payload store for messages that are too large for their broker, if there is one."""
        return None if self._runtime.settings.payload_store is None else self._runtime.store.objects

    async def stop(self) -> None:
        self._runtime.reception.receiver.publisher = None
        self._runtime.readiness.alternative = None
        if self._gauges in self._runtime.metrics_exporter.gauges:
            self._runtime.metrics_exporter.gauges.remove(self._gauges)
        consumers, self.consumers = self.consumers, []
        for consumer in consumers:
            await consumer.stop()
        brokers, self._brokers = self._brokers, {}
        for broker in brokers.values():
            with suppress(BrokerUnavailable):
                await broker.stop()

    async def statuses(self) -> list[IntakeStatus]:
        """What waits in each queue, at most STATUS_EVERY seconds old."""
        now = self._runtime.clock.monotonic()
        if self._statuses is None or now - self._statuses[0] >= STATUS_EVERY:
            sources = self._runtime.sources
            reads = [read_status(sources[name], broker) for name, broker in sorted(self._brokers.items())]
            self._statuses = now, list(await asyncio.gather(*reads))
        return self._statuses[1]

    async def _check_publishing(self) -> None:
        """Return if a queue takes the deliveries of this process, else raise Unavailable."""
        sources = self._runtime.sources
        statuses = [status for status in await self.statuses() if sources[status.source].is_published]
        if not any(status.problem is None for status in statuses):
            raise Unavailable("neither the database nor a broker responds")

    async def _gauges(self) -> dict[Key, float]:
        lags = dict.fromkeys(self._brokers, 0.0)
        lags |= {consumer.source.name: consumer.lag for consumer in self.consumers}
        return {("oncehook_intake_lag_seconds", name): lag for name, lag in lags.items()}

    def _check_trust(self, source: Source) -> None:
        """Log that a source trusts its queue. Raises ConfigurationError if its messages could not be authenticated."""
        risk = durability_risk(source.settings)
        if risk is not None:
            signals.emit("intake_not_durable", source=source.name, detail=risk)
        if source.settings.intake_trust == "queue":
            signals.emit("intake_trusts_queue", source=source.name)
        elif source.is_published and not self._runtime.store.keys:
            raise ConfigurationError(
                f"sources.{source.name}.intake needs a key that seals its messages: `oncehook keys generate` prints "
                f'one, and says how to set it. Or set intake_trust = "queue" if only your processes may write to the '
                f"queue"
            )

    def _consumer(self, source: Source, broker: Broker) -> IntakeConsumer:
        runtime = self._runtime
        receiver, tenants = runtime.reception.receiver, runtime.tenants.get(source.name)

        async def find_tenant(tenant: str) -> Source | None:
            return None if tenants is None else await tenants.find(tenant)

        reader = MessageReader(
            source,
            runtime.store.keys,
            origin=broker.name,
            verify=receiver.verify,
            find_tenant=find_tenant,
            max_age=runtime.horizons[source.name].receipts,
            clock=runtime.clock,
            objects=self._objects,
        )
        return IntakeConsumer(broker, reader, receiver.claims, self._note_rejection, runtime.clock)

    def _note_rejection(self, source: Source, delivery: Delivery, error: Rejected) -> None:
        receiver = self._runtime.reception.receiver
        receiver.rejection_samples.note(source, delivery, error)
        receiver.errors.count(source.name, source.tenant, error.reason, error.detail)
