"""One suite of faults for all brokers: paused, killed and cut off. Nothing is published without an acknowledgement."""

import asyncio
from functools import partial

import pytest

from oncehook.brokers.address import parse_broker
from oncehook.brokers.pool import Publishers
from oncehook.brokers.publisher import Message
from oncehook.model.errors import SendFailed
from tests.support.aws import Moto, environment
from tests.support.brokers import MakeQueue, Queue
from tests.support.proxy import proxied
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.system, pytest.mark.xdist_group("brokers")]


async def publish(publishers: Publishers, address: str, key: str, *, within: float = 10) -> None:
    await publishers.publish(parse_broker(address), Message(key=key, body=key.encode()), timeout=within)


async def is_published(publishers: Publishers, address: str, key: str) -> bool:
    """One attempt. A quorum queue without a leader takes a message and does not acknowledge it."""
    try:
        await publish(publishers, address, key, within=2)
    except SendFailed:
        return False
    return True


@pytest.mark.parametrize("queue", ["nats", "redis", "kafka", "rabbitmq"], indirect=True)
async def test_paused_broker_does_not_acknowledge_and_takes_the_next_message(
    queue: Queue, publishers: Publishers
) -> None:
    await publish(publishers, queue.address(), "before")
    queue.server.pause()
    try:
        with pytest.raises(SendFailed, match="did not acknowledge the message within"):
            await publish(publishers, queue.address(), "during", within=0.3)
    finally:
        queue.server.go_on()
    await publish(publishers, queue.address(), "during")
    keys = [arrived.key for arrived in await queue.messages()]
    assert set(keys) == {"before", "during"} and keys.count("before") == 1


@pytest.mark.parametrize(
    "queue",
    # RabbitMQ takes 4 s to start. Its queue is a classic one: a quorum queue of RabbitMQ 3.10 with one replica, killed
    # in its first seconds, finds no leader afterwards.
    ["nats", "redis", pytest.param("rabbitmq-classic", marks=pytest.mark.rest)],
    indirect=True,
)
async def test_killed_broker_does_not_acknowledge_and_keeps_what_it_acknowledged(
    queue: Queue, publishers: Publishers
) -> None:
    await publish(publishers, queue.address(), "before")
    queue.server.kill()
    with pytest.raises(SendFailed):
        await publish(publishers, queue.address(), "during", within=1)
    queue.server.start()
    await eventually(partial(is_published, publishers, queue.address(), "during"), "the broker takes the message")
    keys = [arrived.key for arrived in await queue.messages()]
    assert keys[0] == "before" and set(keys[1:]) == {"during"}


async def test_killed_kafka_does_not_acknowledge(make_queue: MakeQueue, publishers: Publishers) -> None:
    """The stand-in keeps its messages in memory, so nothing can be said about a restart."""
    queue = await make_queue("kafka")
    await publish(publishers, queue.address(), "before")
    queue.server.kill()
    with pytest.raises(SendFailed):
        await publish(publishers, queue.address(), "during", within=0.5)
    queue.server.start()
    await publish(publishers, queue.address(), "during")
    assert [arrived.key for arrived in await queue.messages()] == ["during"]


@pytest.mark.parametrize("queue", ["nats", "redis", "rabbitmq"], indirect=True)
async def test_message_whose_acknowledgement_is_lost_counts_as_failed(queue: Queue, publishers: Publishers) -> None:
    """The broker has the message, and the caller cannot know it. It sends the message again under the same key."""
    async with proxied(queue.address()) as (proxy, address):
        await publish(publishers, address, "before")
        proxy.lose_reply(b"cut-off-here")
        with pytest.raises(SendFailed):
            await publish(publishers, address, "cut-off-here")
        await publish(publishers, address, "cut-off-here")
        await publishers.close()
    keys = [arrived.key for arrived in await queue.messages()]
    copies = 1 if queue.deduplicates else 2
    assert keys == ["before", *["cut-off-here"] * copies]


@pytest.mark.parametrize("queue", ["nats", "redis", "rabbitmq"], indirect=True)
async def test_message_that_the_broker_never_got_counts_as_failed(queue: Queue, publishers: Publishers) -> None:
    async with proxied(queue.address()) as (proxy, address):
        await publish(publishers, address, "before")
        proxy.lose_request(b"cut-off-here")
        with pytest.raises(SendFailed):
            await publish(publishers, address, "cut-off-here")
        proxy.refuse()
        with pytest.raises(SendFailed):
            await publish(publishers, address, "refused", within=2)
        await publishers.close()
    assert [arrived.key for arrived in await queue.messages()] == ["before"]


async def test_response_of_sqs_that_is_lost_counts_as_failed(
    make_queue: MakeQueue, publishers: Publishers, moto: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = await make_queue("sqs")
    async with proxied(f"{moto.url}/") as (proxy, url):
        for name, value in environment(url.rstrip("/")).items():
            monkeypatch.setenv(name, value)
        proxy.lose_reply(b"cut-off-here")
        with pytest.raises(SendFailed):
            await publish(publishers, queue.address(), "cut-off-here")
        await publish(publishers, queue.address(), "cut-off-here")
        await publishers.close()
    assert [arrived.key for arrived in await queue.messages()] == ["cut-off-here"]


async def test_failed_connection_finishes_its_other_messages_before_it_is_closed(
    make_queue: MakeQueue, publishers: Publishers
) -> None:
    queue = await make_queue("nats")
    await publish(publishers, queue.address(), "before")
    queue.server.pause()
    waiting = asyncio.create_task(publish(publishers, queue.address(), "patient", within=20))
    try:
        with pytest.raises(SendFailed):
            await publish(publishers, queue.address(), "hasty", within=0.1)
        assert not publishers._connections and not waiting.done()
    finally:
        queue.server.go_on()
    await waiting
    await eventually(lambda: not publishers._closing, "the failed connection is closed")
    assert {arrived.key for arrived in await queue.messages()} == {"before", "hasty", "patient"}


async def test_cancelled_message_leaves_no_connection_open(make_queue: MakeQueue, publishers: Publishers) -> None:
    queue = await make_queue("nats")
    queue.server.pause()
    try:
        publishing = asyncio.create_task(publish(publishers, queue.address(), "cancelled"))
        await eventually(lambda: publishers._connections)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        assert not publishers._connections
    finally:
        queue.server.go_on()
    await publish(publishers, queue.address(), "next")
    assert "next" in [arrived.key for arrived in await queue.messages()]
