"""Publishing a delivery: its id, the limits, and the pause after a broker did not respond."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from oncehook.config.settings import SourceSettings
from oncehook.intake import publisher as module
from oncehook.intake.broker import Broker
from oncehook.intake.envelope import unseal
from oncehook.intake.open_broker import open_broker
from oncehook.intake.publisher import FIRST_PAUSE, IntakePublisher
from oncehook.model.delivery import Delivery
from oncehook.model.errors import BrokerUnavailable, IntakeFull
from oncehook.objects.payload_objects import PayloadObjects
from oncehook.providers.source import Source
from tests.support.clocks import ManualClock
from tests.support.events import STRIPE_SECRET, stripe_body
from tests.support.intake import BrokerQueue, keys
from tests.support.intake_brokers import receive_messages
from tests.support.waiting import hang

pytestmark = pytest.mark.anyio

SOURCE = Source("stripe", SourceSettings(secrets=(STRIPE_SECRET,)), max_body=10_000)


@pytest.fixture
async def broker(queue: BrokerQueue) -> AsyncIterator[Broker]:
    broker = open_broker(queue.intake, "stripe")
    await broker.start()
    yield broker
    await broker.stop()


def make_publisher(broker: Broker, clock: ManualClock | None = None, limit_bytes: int = 2**20) -> IntakePublisher:
    return IntakePublisher({"stripe": broker}, keys(), limit_bytes=limit_bytes, clock=clock or ManualClock())


async def publish(publisher: IntakePublisher, event_id: str, **more: str) -> bool:
    delivery = Delivery.of(stripe_body(event_id, **more))
    publisher.prepare(delivery)
    return await publisher.publish(SOURCE, delivery, 0)


async def test_published_message_has_the_delivery_and_its_secret(broker: Broker) -> None:
    assert await publish(make_publisher(broker), "evt_1")
    (message,) = await receive_messages(broker, 1)
    envelope = unseal(message.body, "stripe", keys(), trusted=False)
    assert (envelope.body, envelope.received_at) == (stripe_body("evt_1"), 1_000.0)
    assert (envelope.verified_by, len(envelope.id)) == (SOURCE.fingerprints[0], 32)


async def test_delivery_is_claimed_directly_for_a_while_after_a_publish_failed(
    broker: Broker, queue: BrokerQueue
) -> None:
    clock = ManualClock()
    publisher = make_publisher(broker, clock)
    await queue.cut()
    assert not await publish(publisher, "evt_1")
    await queue.heal()
    assert not await publish(publisher, "evt_2"), "the broker is not tried again at once"
    clock.advance(FIRST_PAUSE)
    assert await publish(publisher, "evt_3")


class Small:
    """A broker that takes only short messages."""

    name, max_message = "small", 1_000

    def __init__(self, sent: list[bytes]) -> None:
        self.sent = sent

    async def publish(self, message: bytes, message_id: str) -> None:
        self.sent.append(message)


class Hanging:
    """A broker that never answers."""

    name, max_message = "hanging", 10_000

    async def publish(self, message: bytes, message_id: str) -> None:
        await hang()


async def test_broker_that_does_not_answer_delays_a_delivery_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PUBLISH_SECONDS", 0.05)
    clock = ManualClock()
    publisher = make_publisher(cast(Broker, Hanging()), clock)
    async with asyncio.timeout(5):
        assert not await publish(publisher, "evt_1")
        clock.advance(FIRST_PAUSE)
        assert not await publish(publisher, "evt_2")
    clock.advance(FIRST_PAUSE)
    assert publisher._paused_until["stripe"] > clock.monotonic(), "the second pause is longer"


class Failing:
    """A broker that does not respond while it is down."""

    name, max_message = "failing", 10_000
    is_down = False

    async def publish(self, message: bytes, message_id: str) -> None:
        if self.is_down:
            raise BrokerUnavailable("it is down")


async def test_pause_is_short_again_after_a_publish_has_succeeded() -> None:
    broker, clock = Failing(), ManualClock()
    publisher = make_publisher(cast(Broker, broker), clock)
    for number in range(6):
        broker.is_down = True
        assert not await publish(publisher, f"evt_lost_{number}")
        broker.is_down = False
        clock.advance(FIRST_PAUSE)
        assert await publish(publisher, f"evt_{number}"), "a short failure is followed by a short pause"


async def test_more_bytes_than_may_wait_for_the_broker_are_unavailable(broker: Broker) -> None:
    publisher = make_publisher(broker, limit_bytes=100)
    first, second = await asyncio.gather(
        publish(publisher, "evt_1"), publish(publisher, "evt_2"), return_exceptions=True
    )
    assert first is True, "one delivery is always published, however large it is"
    assert isinstance(second, IntakeFull)
    assert await publish(publisher, "evt_2")


async def test_message_that_is_too_large_for_the_broker_waits_in_the_payload_store(tmp_path: Path) -> None:
    sent: list[bytes] = []
    objects = PayloadObjects(lambda: f"file://{tmp_path}")
    publisher = IntakePublisher(
        {"stripe": cast(Broker, Small(sent))}, keys(), objects=objects, limit_bytes=2**20, clock=ManualClock()
    )
    assert await publish(publisher, "evt_1", note="x" * 2_000)
    (pointer,) = sent
    envelope = unseal(pointer, "stripe", keys(), trusted=False)
    assert (envelope.body, envelope.headers) == (b"", [])
    whole = unseal(await objects.get(envelope.object), "stripe", keys(), trusted=False)
    assert (whole.body, whole.id) == (stripe_body("evt_1", note="x" * 2_000), envelope.id)


async def test_message_that_is_too_large_is_claimed_directly_without_a_payload_store() -> None:
    sent: list[bytes] = []
    assert not await publish(make_publisher(cast(Broker, Small(sent))), "evt_1", note="x" * 2_000)
    assert sent == []


async def test_source_without_a_queue_is_claimed_directly(broker: Broker) -> None:
    other = Source("github", SourceSettings(secrets=("github-secret",)), max_body=10_000)
    publisher = make_publisher(broker)
    assert not await publisher.publish(other, Delivery.of(b"{}"), 0)
