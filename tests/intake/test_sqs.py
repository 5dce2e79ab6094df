"""SQS as a broker: attributes of the queue, visibility, redrive, FIFO queues, and notifications of SNS."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from oncehook.intake.sqs import SqsBroker
from oncehook.model.errors import BrokerUnavailable, ConfigurationError
from tests.support.aws import Moto

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(address: str) -> AsyncIterator[SqsBroker]:
    broker = SqsBroker(address, "stripe")
    try:
        await broker.start()
        broker.wait_seconds = 1
        yield broker
    finally:
        await broker.stop()


async def test_queue_that_does_not_exist_is_a_configuration_error(aws: Moto) -> None:
    with pytest.raises(ConfigurationError, match="the queue sqs:missing does not exist"):
        async with opened(f"{aws.url}/123456789012/missing"):
            pass


async def test_limits_come_from_the_attributes_of_the_queue(aws: Moto) -> None:
    async with opened(aws.queue(MaximumMessageSize="2048", VisibilityTimeout="12")) as broker:
        assert (broker.max_message, broker.extend_every) == (2048, 4.0)


async def test_released_message_is_delivered_again_at_once(aws: Moto) -> None:
    async with opened(aws.queue()) as broker:
        await broker.publish(b"one", "1")
        (first,) = await broker.receive()
        assert (first.body, first.receives) == (b"one", 1)
        await broker.release([first])
        (second,) = await broker.receive()
        assert (second.id, second.receives) == (first.id, 2)
        await broker.ack([second])
        assert (await broker.status()).waiting == 0


async def test_message_that_is_extended_is_not_delivered_again(aws: Moto) -> None:
    async with opened(aws.queue(VisibilityTimeout="1")) as broker:
        await broker.publish(b"one", "1")
        (message,) = await broker.receive()
        broker._visibility = 60
        await broker.extend([message])
        assert await broker.receive() == []


async def test_status_counts_waiting_held_and_dead_messages(aws: Moto) -> None:
    dead = aws.queue("-dead")
    arn = aws.call("sqs", "GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    aws.call("sqs", "SendMessage", QueueUrl=dead, MessageBody="dead")
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    async with opened(aws.queue(RedrivePolicy=redrive)) as broker:
        for number in range(12):
            await broker.publish(b"x", str(number))
        held = await broker.receive()
        status = await broker.status()
        assert (status.waiting, status.in_flight, status.dead) == (12 - len(held), len(held), 1)


async def test_rejected_message_goes_to_the_dead_letters_after_its_last_receive(aws: Moto) -> None:
    dead = aws.queue("-dead")
    arn = aws.call("sqs", "GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "1"})
    async with opened(aws.queue(RedrivePolicy=redrive)) as broker:
        broker.rejected_seconds = 0
        await broker.publish(b"poison", "1")
        (message,) = await broker.receive()
        await broker.reject(message, "malformed")
        assert await broker.receive() == []
        assert (await broker.status()).dead == 1


async def test_rejected_message_without_a_redrive_policy_is_hidden(aws: Moto) -> None:
    async with opened(aws.queue()) as broker:
        await broker.publish(b"poison", "1")
        (message,) = await broker.receive()
        await broker.reject(message, "malformed")
        status = await broker.status()
        assert (status.waiting, status.in_flight, status.dead) == (0, 1, None)


async def test_message_that_is_rejected_again_and_again_is_hidden_for_less_than_the_12_hours_of_sqs(aws: Moto) -> None:
    async with opened(aws.queue()) as broker:
        await broker.publish(b"poison", "1")
        (message,) = await broker.receive()
        broker.rejected_seconds = 3600
        await broker.reject(replace(message, receives=20), "malformed")
        assert (await broker.status()).in_flight == 1


async def test_fifo_queue_drops_a_repeated_publish(aws: Moto) -> None:
    async with opened(aws.queue(".fifo")) as broker:
        for number in ("1", "1", "2"):
            await broker.publish(number.encode(), number)
        assert sorted(message.body for message in await broker.receive()) == [b"1", b"2"]


async def test_broker_that_does_not_respond_is_unavailable(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(aws.queue()) as broker:
        monkeypatch.setattr(broker, "_address", f"{aws.url}/123456789012/gone")
        with pytest.raises(BrokerUnavailable, match="the queue does not exist"):
            await broker.publish(b"x", "1")
