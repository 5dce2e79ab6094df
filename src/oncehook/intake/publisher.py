"""Publishes verified deliveries to the queues of their sources, so that they can be acked while the database is down.

A message that is too large for the broker is stored in the payload store, and the broker gets its address. If the
broker does not respond, or no payload store is configured, the receiver claims the delivery in the database instead.
Both ways have the same event id, so a delivery that went both ways is one event.
"""

import asyncio
import math
import secrets
from collections.abc import Mapping

from oncehook.concurrency.clock import Clock
from oncehook.config.keyring import KeyRing
from oncehook.intake.broker import Broker
from oncehook.intake.envelope import Envelope, make_envelope, make_pointer, seal
from oncehook.model.delivery import Delivery
from oncehook.model.errors import BrokerUnavailable, IntakeFull
from oncehook.objects.payload_objects import PayloadObjects
from oncehook.objects.reference import ObjectStoreUnavailable
from oncehook.observability import signals
from oncehook.providers.expressions import NEW
from oncehook.providers.source import Source

PUBLISH_SECONDS = 3.0
"""Seconds that a broker may take to confirm a message. Providers wait for the ack for 5 to 30 seconds."""

FOLDER = "intake"
"""The folder of the payload store with messages that are too large for a broker."""

FIRST_PAUSE, MAX_PAUSE = 5.0, 60.0
"""Seconds for which the receiver claims directly after a publish failed. They double with each failure in a row."""


class IntakePublisher:
    """Implements the receiver's `PublishStep`."""

    def __init__(
        self,
        brokers: Mapping[str, Broker],
        keys: KeyRing,
        *,
        objects: PayloadObjects | None = None,
        limit_bytes: int,
        clock: Clock,
    ) -> None:
        """`brokers` has the queue of each source, by its name. `objects` stores messages that are too large for it."""
        self._brokers = brokers
        self._objects = objects
        self._keys = keys
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._bytes = 0  # of messages that are being published
        self._paused_until: dict[str, float] = {}
        self._pauses: dict[str, float] = {}

    def prepare(self, delivery: Delivery) -> None:
        """Give a delivery its id, which a provider without event ids uses as one."""
        delivery.headers[NEW] = secrets.token_hex(16).encode()

    async def publish(self, source: Source, delivery: Delivery, verified_by: int) -> bool:
        """Publish a delivery durably. Returns False if it must be claimed directly.

        Raises IntakeFull if too many bytes are being published.
        """
        broker = self._brokers.get(source.name)
        if broker is None or self._clock.monotonic() < self._paused_until.get(source.name, -math.inf):
            return False
        message_id = delivery.headers[NEW].decode()
        envelope = self._envelope(source, delivery, message_id, verified_by)
        message = seal(envelope, self._keys)
        if self._bytes and self._bytes + len(message) > self._limit_bytes:
            raise IntakeFull("too many bytes wait for the broker", retry_after=2)
        self._bytes += len(message)
        try:
            if len(message) <= broker.max_message:
                return await self._send(source, broker, message, message_id)
            return await self._send_aside(source, broker, envelope, message)
        finally:
            self._bytes -= len(message)

    async def _send(self, source: Source, broker: Broker, message: bytes, message_id: str) -> bool:
        try:
            async with asyncio.timeout(PUBLISH_SECONDS):
                await broker.publish(message, message_id)
        except BrokerUnavailable as error:
            self._pause(source, broker, error.detail)
            return False
        except TimeoutError:  # it may arrive later: its events are duplicates then
            self._pause(source, broker, f"no answer within {PUBLISH_SECONDS:g} s")
            return False
        self._pauses.pop(source.name, None)
        return True

    async def _send_aside(self, source: Source, broker: Broker, envelope: Envelope, message: bytes) -> bool:
        """Store a message that is too large for the broker, and publish its address. Returns False without a store.

        If the publish fails, the object stays: the message may be in the queue all the same.
        """
        if self._objects is None:
            return False
        try:
            address = await self._objects.put(message, FOLDER)
        except ObjectStoreUnavailable as error:
            signals.emit("publish_failed", source=source.name, queue=broker.name, detail=str(error))
            return False
        return await self._send(source, broker, seal(make_pointer(envelope, address), self._keys), envelope.id)

    def _pause(self, source: Source, broker: Broker, detail: str) -> None:
        """Claim the deliveries of a source directly for a while."""
        seconds = self._pauses.get(source.name, FIRST_PAUSE)
        self._pauses[source.name] = min(2 * seconds, MAX_PAUSE)
        self._paused_until[source.name] = self._clock.monotonic() + seconds
        signals.emit("publish_failed", source=source.name, queue=broker.name, detail=detail)

    def _envelope(self, source: Source, delivery: Delivery, message_id: str, verified_by: int) -> Envelope:
        return make_envelope(
            source,
            delivery,
            id=message_id,
            received_at=self._clock.now(),
            verified_by=source.fingerprints[verified_by],
        )
