"""A queue of SQS: batches, partial failures, visibility, and its attributes. Against the stand-in."""

from collections.abc import AsyncIterator

import pytest

from oncehook.brokers.sqs import MAX_VISIBILITY, Outgoing, SqsQueue, _failed, _seconds
from oncehook.model.errors import BrokerUnavailable, ConfigurationError
from tests.support.aws import Moto
from tests.support.work_queue import WorkQueue

pytestmark = pytest.mark.anyio


def outgoing(*bodies: str) -> list[Outgoing]:
    return [Outgoing(body, "group", body) for body in bodies]


@pytest.fixture
def target(aws: Moto) -> WorkQueue:
    return WorkQueue(aws, max_receives=3)


@pytest.fixture
async def queue(target: WorkQueue) -> AsyncIterator[SqsQueue]:
    queue = SqsQueue(target.url, needed_by="queue")
    await queue.open()
    yield queue
    await queue.close()


async def test_messages_are_sent_received_and_deleted_in_batches(queue: SqsQueue, target: WorkQueue) -> None:
    assert await queue.send(outgoing(*map(str, range(10)))) == []
    received = await queue.receive(30, wait=0)
    assert sorted(message.body for message in received) == sorted(map(str, range(10)))
    assert {message.receives for message in received} == {1}
    assert await queue.receive(30, wait=0) == [], "they are invisible"
    assert await queue.delete(received) == []
    assert target.is_empty


async def test_a_message_can_be_made_visible_again(queue: SqsQueue) -> None:
    await queue.send(outgoing("a"))
    (first,) = await queue.receive(30, wait=0)
    assert await queue.change_visibility([(first, 0.0)]) == []
    (second,) = await queue.receive(30, wait=0)
    assert (second.body, second.receives) == ("a", 2)


async def test_the_attributes_have_the_counts_and_the_redrive_policy(queue: SqsQueue, target: WorkQueue) -> None:
    await queue.send(outgoing("a", "b"))
    await queue.receive(30, wait=0, most=1)
    attributes = await queue.attributes()
    assert (attributes.waiting, attributes.in_flight, attributes.total, attributes.max_receives) == (1, 1, 2, 3)
    assert attributes.dead_letter_arn is not None
    dead_letters = await queue.dead_letter_queue(attributes.dead_letter_arn)
    assert dead_letters.url == target.dead_letters
    assert (await dead_letters.attributes()).dead_letter_arn is None


async def test_a_fifo_queue_gets_groups_and_deduplication_ids(aws: Moto) -> None:
    queue = SqsQueue(aws.queue(".fifo"), needed_by="queue")
    await queue.open()
    odd = Outgoing("a", "an object \n with ☃ and " + "x" * 500, "1-0-0")
    assert await queue.send([odd]) == await queue.send([odd]) == []
    assert [message.body for message in await queue.receive(30, wait=0)] == ["a"], "the copy is dropped"
    await queue.close()


async def test_a_queue_that_does_not_exist_is_unavailable(aws: Moto) -> None:
    queue = SqsQueue(f"{aws.url}/123456789012/missing", needed_by="queue")
    await queue.open()
    with pytest.raises(BrokerUnavailable, match="the queue does not exist"):
        await queue.attributes()
    await queue.close()


async def test_entries_that_sqs_did_not_take_are_returned() -> None:
    response = {"Successful": [{"Id": "0"}], "Failed": [{"Id": "1", "SenderFault": False}]}
    assert _failed(response, ["a", "b"]) == ["b"]


async def test_visibility_is_rounded_up_and_limited() -> None:
    assert [_seconds(seconds) for seconds in (-1.0, 0.0, 0.1, 2.0, 10.0**9)] == [0, 0, 1, 2, MAX_VISIBILITY]


@pytest.mark.parametrize("url", ["", "orders", "https://", "ftp://host/name", "https://host", "https://a b/c"])
async def test_the_address_must_be_a_url(url: str) -> None:
    with pytest.raises(ConfigurationError, match="the URL of an SQS queue"):
        SqsQueue(url, needed_by="queue")


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("https://sqs.eu-west-1.amazonaws.com/1/a", "eu-west-1"),
        ("https://us-east-2.queue.amazonaws.com/1/a", "us-east-2"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/a", "cn-north-1"),
        ("http://127.0.0.1:4566/1/a", None),
    ],
)
async def test_the_region_is_that_of_the_url(url: str, region: str | None) -> None:
    assert SqsQueue(url, needed_by="queue")._client._region == region
