"""Reads a message: finds the delivery in it, verifies or trusts it as the source says, and reads its events.

A message is verified as of the time at which the broker got it: it may wait for days, and a signature must not become
stale during that time. A delivery that the receiver published is verified already; its seal is checked instead.
"""

from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from oncehook.concurrency.clock import Clock
from oncehook.config.keyring import KeyRing
from oncehook.config.settings import SourceSettings
from oncehook.intake.broker import Message
from oncehook.intake.envelope import Envelope, unseal
from oncehook.intake.formats import FORMATS, read_http
from oncehook.model.claim import Claim
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected, Unavailable
from oncehook.objects.payload_objects import PayloadObjects
from oncehook.objects.reference import ObjectMissing, ObjectStoreUnavailable
from oncehook.providers.claims import ClaimReader
from oncehook.providers.source import Source

TENANT_HEADER = b"oncehook-tenant"
"""The attribute or header of a message that names the tenant, if others fill the queue."""

Verify = Callable[[Source, Delivery, float], Awaitable[int]]
FindTenant = Callable[[str], Awaitable[Source | None]]


class MessageReader:
    """Reads the messages of one source's queue."""

    def __init__(
        self,
        source: Source,
        keys: KeyRing,
        *,
        origin: str,
        verify: Verify,
        find_tenant: FindTenant,
        max_age: float,
        clock: Clock,
        objects: PayloadObjects | None = None,
    ) -> None:
        """`max_age` is the source's `dedupe_window`: an older message could be an event whose receipt is pruned."""
        self.source = source
        self._keys = keys
        self._origin = origin
        self._verify = verify
        self._find_tenant = find_tenant
        self._max_age = max_age
        self._clock = clock
        self._objects = objects
        self._stored: dict[str, str] = {}  # by message id, the address of its object
        settings = source.settings
        self._trusts_queue = settings.intake_trust == "queue"
        self._format = FORMATS.get(settings.intake_format)
        self._topic = _topic_source(source)

    async def read(self, message: Message) -> list[Claim]:
        """The events of a message, as they are claimed.

        Raises Rejected if the message can never be claimed, and Unavailable if it cannot be verified now.
        """
        self._check_age(message.sent_at)
        reader, delivery = await (self._foreign(message) if self._format else self._published(message))
        if len(delivery.body) > self.source.max_body:
            raise Rejected("malformed", "the body is larger than max_body")
        claims = [replace(claim, origin=self._origin) for claim in reader.read(delivery, reader.parse(delivery))]
        return claims if self.source.encrypt is None else self.source.encrypt(claims)

    async def _published(self, message: Message) -> tuple[ClaimReader, Delivery]:
        """The delivery that a receiver verified and published."""
        envelope = self._unseal(message.body)
        if envelope.object:
            envelope = self._unseal(await self._fetch(message, envelope.object))
        self._check_age(envelope.received_at)
        reader = self.source.reader
        return reader.for_tenant(envelope.tenant) if envelope.tenant else reader, envelope.delivery()

    def _unseal(self, message: bytes) -> Envelope:
        return unseal(message, self.source.name, self._keys, trusted=self._trusts_queue)

    async def _fetch(self, message: Message, address: str) -> bytes:
        """The message that the payload store has, because it was too large for the broker."""
        if self._objects is None:
            raise Unavailable("a message is in the payload store: set payload_store")
        self._stored[message.id] = address
        try:
            return await self._objects.get(address)
        except ObjectStoreUnavailable as error:
            raise Unavailable(str(error)) from error
        except ObjectMissing as error:
            raise Rejected("malformed", str(error)) from error

    async def discard(self, messages: Sequence[Message]) -> None:
        """Delete the objects of messages that are acked. What cannot be deleted now stays in the payload store."""
        addresses = [self._stored.pop(message.id) for message in messages if message.id in self._stored]
        if addresses and self._objects is not None:
            await self._objects.delete(addresses)

    def forget(self, messages: Sequence[Message]) -> None:
        """Forget the objects of messages that this process no longer holds."""
        for message in messages:
            self._stored.pop(message.id, None)

    async def _foreign(self, message: Message) -> tuple[ClaimReader, Delivery]:
        """The delivery in a message that others put into the queue, once it is verified or trusted."""
        assert self._format is not None
        if self._topic is not None:
            await self._verify(self._topic, read_http(message, self._topic.provider), message.sent_at)
        delivery = self._format(message, self.source.provider)
        source = await self._source_of(delivery)
        if source.settings.intake_trust is None:
            await self._verify(source, delivery, message.sent_at)
        return source.reader, delivery

    async def _source_of(self, delivery: Delivery) -> Source:
        tenant = delivery.headers.pop(TENANT_HEADER, b"").decode("latin-1")
        if not tenant and not self.source.needs_tenant:
            return self.source
        source = await self._find_tenant(tenant)
        if source is None:
            raise Rejected("malformed", "the message names no tenant of the source")
        return source

    def _check_age(self, sent_at: float) -> None:
        if self._clock.now() - sent_at > self._max_age:
            raise Rejected("stale_timestamp", "the message is older than the dedupe_window of the source")


def _topic_source(source: Source) -> Source | None:
    """A source that verifies the signature of SNS for the topics of `source`, if these are trusted."""
    settings = source.settings
    if settings.intake_trust != "topic":
        return None
    topic_settings = SourceSettings(provider="ses", topics=settings.topics)
    return Source(source.name, topic_settings, max_body=source.max_body, certificates=source.certificates)
