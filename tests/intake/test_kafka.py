"""Kafka as the broker of an intake: offsets that follow the claims, and partitions that move between consumers."""

from collections.abc import AsyncIterator
from functools import partial

import pytest

from oncehook.brokers.address import parse_broker
from oncehook.intake import kafka
from oncehook.intake.broker import Message
from oncehook.intake.kafka import KafkaBroker
from oncehook.model.errors import BrokerUnavailable, ConfigurationError
from tests.support.broker_servers import KafkaMock
from tests.support.intake_brokers import KafkaIntake, receive_messages
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def queue(kafka_mock: KafkaMock, monkeypatch: pytest.MonkeyPatch) -> KafkaIntake:
    monkeypatch.setattr(kafka, "SESSION_SECONDS", 5.0)
    monkeypatch.setattr(kafka, "WAIT_SECONDS", 0.2)
    return KafkaIntake(kafka_mock)


@pytest.fixture
async def broker(queue: KafkaIntake) -> AsyncIterator[KafkaBroker]:
    broker = KafkaBroker(parse_broker(queue.intake), "stripe")
    await broker.start()
    yield broker
    await broker.stop()


async def test_topic_that_does_not_exist_is_an_error_at_the_start(kafka_mock: KafkaMock) -> None:
    broker = KafkaBroker(parse_broker(kafka_mock.address("missing")), "stripe")
    with pytest.raises(ConfigurationError, match="the topic missing does not exist"):
        await broker.start()
    await broker.stop()
    with pytest.raises(BrokerUnavailable):
        await broker.receive()


async def test_offset_is_committed_after_the_ack_and_released_messages_come_again(
    queue: KafkaIntake, broker: KafkaBroker
) -> None:
    for number in range(6):
        await queue.put(b"%d" % number, {"X-Number": str(number)})
    messages = await receive_messages(broker, 6)
    assert len({message.id for message in messages}) == 6 and await queue.messages() == 6
    assert sorted(message.headers for message in messages)[0] == ((b"x-number", b"0"),)
    await broker.extend(messages)  # the consumer stays in the group while it holds them
    await broker.release(messages[2:])
    await broker.ack(messages[:2])
    again = await receive_messages(broker, 4)
    assert {message.id for message in again} == {message.id for message in messages[2:]}
    assert (await broker.status()).in_flight == 4
    await broker.ack(again)

    async def is_committed() -> bool:
        return await queue.messages() == 0

    await eventually(is_committed, "the offsets are committed")
    assert (await broker.status()).waiting == 0


@pytest.mark.rest  # on a busy machine, a member of the mock's group can miss its session, and the group starts over
async def test_message_that_another_consumer_gets_is_not_committed_by_the_first(
    queue: KafkaIntake, broker: KafkaBroker
) -> None:
    """The second consumer joins while the first one holds messages. Messages that are not acked are delivered again."""
    for number in range(40):
        await queue.put(b"%d" % number)
    held = await receive_messages(broker, 40)
    other = KafkaBroker(parse_broker(queue.intake), "stripe")
    await other.start()
    try:
        got: list[Message] = []

        async def both_have_partitions() -> bool:
            await broker.extend(held)
            got.extend(await other.receive())
            return bool(got)

        await eventually(both_have_partitions, "the second consumer gets messages of its partitions", within=120)
        moved = {message.handle[0] for message in got}
        await broker.ack(held)
        uncommitted = sum(message.handle[0] in moved for message in held)
        assert await queue.messages() >= uncommitted > 0, "the first consumer no longer has these partitions"
        await other.ack(got)

        async def is_empty() -> bool:
            for consumer in (broker, other):
                await consumer.ack(await consumer.receive())
            return await queue.messages() == 0

        await eventually(is_empty, "every message is acked by its new consumer", within=120)
    finally:
        await other.stop()


async def test_broker_that_does_not_respond_is_unavailable(
    queue: KafkaIntake, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "CALL_SECONDS", 0.3)
    await queue.cut()
    for call in (partial(broker.publish, b"hello", "id"), broker.status):
        with pytest.raises(BrokerUnavailable):
            await call()
    monkeypatch.undo()
    await queue.heal()
    await broker.publish(b"hello", "id")
