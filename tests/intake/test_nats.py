"""NATS JetStream as the broker of an intake: its stream, redelivery, and rejected messages."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from oncehook.brokers.address import parse_broker
from oncehook.intake import nats
from oncehook.intake.nats import NatsBroker
from oncehook.model.errors import BrokerUnavailable, ConfigurationError
from tests.support.broker_servers import NatsServer
from tests.support.intake_brokers import NatsIntake, nats_intake
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
async def queue(nats_server: NatsServer) -> AsyncIterator[NatsIntake]:
    async with nats_intake(nats_server) as queue:
        yield queue


@pytest.fixture
async def broker(queue: NatsIntake, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[NatsBroker]:
    monkeypatch.setattr(nats, "ACK_SECONDS", 1.0)
    broker = NatsBroker(parse_broker(queue.intake), "stripe")
    await broker.start()
    yield broker
    await broker.stop()


@pytest.mark.parametrize("subject", ["orders.*", "orders.>", "orders..new"])
def test_subject_with_a_wildcard_is_an_error(subject: str) -> None:
    with pytest.raises(ConfigurationError, match="must name one subject"):
        NatsBroker(parse_broker(f"nats://host/{subject}"), "stripe")


async def test_subject_without_a_stream_is_an_error_at_the_start(nats_server: NatsServer) -> None:
    broker = NatsBroker(parse_broker(nats_server.address("not.captured")), "stripe")
    with pytest.raises(ConfigurationError, match=r"captures the subject not\.captured"):
        await broker.start()
    await broker.stop()


async def test_message_without_an_ack_is_delivered_again_with_the_same_id(
    queue: NatsIntake, broker: NatsBroker
) -> None:
    await queue.put(b"hello", {"X-Name": "a"})
    (first,) = await broker.receive()
    assert (first.body, first.headers, first.receives) == (b"hello", ((b"x-name", b"a"),), 1)
    (again,) = await broker.receive()
    assert (again.id, again.receives) == (first.id, 2)
    await broker.ack([first])  # the ack of either delivery counts
    await broker.ack([again])
    assert await queue.messages() == 0


async def test_receive_that_was_cancelled_takes_no_message_from_others(queue: NatsIntake, broker: NatsBroker) -> None:
    """A consumer that stops cancels its receive, and the server would still have the request."""
    receiving = asyncio.create_task(broker.receive())

    async def is_waiting() -> bool:
        return (await broker.status()).consumers == 1

    await eventually(is_waiting, "the server has the request")
    receiving.cancel()
    await asyncio.gather(receiving, return_exceptions=True)
    other = NatsBroker(parse_broker(queue.intake), "stripe")
    await other.start()
    try:
        await queue.put(b"hello")
        (message,) = await other.receive()
        assert message.receives == 1, "it was not delivered to the cancelled request before"
    finally:
        await other.stop()


async def test_message_that_is_extended_is_not_delivered_again(queue: NatsIntake, broker: NatsBroker) -> None:
    await queue.put(b"hello")
    (held,) = await broker.receive()
    for _ in range(4):
        await broker.extend([held])
        with_others = await broker.receive(wait=False)
        assert with_others == []
    status = await broker.status()
    assert (status.waiting, status.in_flight, status.dead) == (0, 1, 0)
    await broker.release([held])
    (again,) = await broker.receive()
    assert again.receives == 2


async def test_rejected_message_is_published_to_the_subject_for_them(queue: NatsIntake, broker: NatsBroker) -> None:
    await queue.put(b"bad")
    (message,) = await broker.receive()
    await broker.reject(message, "malformed")
    assert (await queue.messages(), await queue.dead(), (await broker.status()).dead) == (0, 1, 1)


async def test_rejected_message_stays_in_a_work_queue_if_nothing_else_keeps_it(
    queue: NatsIntake, broker: NatsBroker
) -> None:
    async with queue.context() as context:
        await context.delete_stream(f"{queue.name}-rejected")
    await queue.put(b"bad")
    (message,) = await broker.receive()
    await broker.reject(message, "malformed")
    assert await broker.receive(wait=False) == [] and await queue.messages() == 1
    assert (await broker.status()).dead is None


async def test_id_of_a_new_stream_is_never_that_of_an_old_one(queue: NatsIntake, broker: NatsBroker) -> None:
    ids = []
    for _ in range(2):
        await queue.put(b"hello")
        (message,) = await broker.receive()
        ids.append(message.id)
        async with queue.context() as context:
            await context.delete_stream(queue.name)
            await context.delete_stream(f"{queue.name}-rejected")
        await queue.create()
        await broker.stop()
        await broker.start()
    assert len(set(ids)) == 2


async def test_broker_that_does_not_respond_is_unavailable_and_connected_again_later(
    queue: NatsIntake, broker: NatsBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats, "CALL_SECONDS", 0.3)
    queue.proxy.stall()
    for call in (broker.publish(b"hello", "id"), broker.status(), broker.receive(wait=False)):
        with pytest.raises(BrokerUnavailable):
            await call
    queue.proxy.flow()

    async def is_published() -> bool:
        try:
            await broker.publish(b"hello", "id")
        except BrokerUnavailable:
            return False
        return True

    await eventually(is_published, "the broker takes the message")
    assert [message.body for message in await broker.receive()] == [b"hello"]
