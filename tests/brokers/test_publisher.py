"""One suite for all brokers: a message is published when the broker has acknowledged it, with its key and headers."""

import asyncio

import pytest

from oncehook.brokers.address import parse_broker
from oncehook.brokers.pool import Publishers
from oncehook.brokers.publisher import Message, NotStored, check_broker, make_publisher
from oncehook.model.errors import ConfigurationError, SendFailed, SendRefused
from tests.support.broker_servers import PASSWORD
from tests.support.brokers import Queue

pytestmark = [pytest.mark.anyio, pytest.mark.system, pytest.mark.xdist_group("brokers")]

BODY = '{"id": "evt_1", "é": 1.10}\n'.encode()
HEADERS = {"content-type": "application/json", "Oncehook-Source": "stripe", "Idempotency-Key": "stripe:evt_1"}


async def test_message_arrives_with_its_key_its_headers_and_the_same_bytes(
    queue: Queue, publishers: Publishers
) -> None:
    await publishers.publish(
        parse_broker(queue.address()), Message(key="stripe:evt_1", body=BODY, headers=HEADERS), timeout=10
    )
    (arrived,) = await queue.messages()
    assert (arrived.key, arrived.body) == ("stripe:evt_1", BODY)
    assert {name: arrived.headers[name.lower()] for name in HEADERS} == HEADERS


async def test_second_message_with_a_key_is_dropped_by_brokers_that_deduplicate(
    queue: Queue, publishers: Publishers
) -> None:
    for key in ("first", "second", "second"):
        await publishers.publish(parse_broker(queue.address()), Message(key=key, body=BODY), timeout=10)
    expected = ["first", "second"] if queue.deduplicates else ["first", "second", "second"]
    assert sorted(arrived.key for arrived in await queue.messages()) == expected


async def test_many_messages_at_the_same_time_are_each_acknowledged(queue: Queue, publishers: Publishers) -> None:
    messages = [Message(key=f"key-{number}", body=b"%d" % number) for number in range(8)]
    publish = [publishers.publish(parse_broker(queue.address()), message, timeout=10) for message in messages]
    await asyncio.gather(*publish)
    assert {arrived.key: arrived.body for arrived in await queue.messages()} == {m.key: m.body for m in messages}


async def test_message_to_a_queue_that_does_not_exist_is_not_stored_and_the_next_one_is(
    queue: Queue, publishers: Publishers
) -> None:
    if queue.missing is not None:
        with pytest.raises(NotStored) as caught:
            await publishers.publish(parse_broker(queue.missing), Message(key="lost", body=BODY), timeout=10)
        assert PASSWORD not in str(caught.value) and parse_broker(queue.missing).origin in str(caught.value)
    await publishers.publish(parse_broker(queue.address()), Message(key="next", body=BODY), timeout=10)
    assert [arrived.key for arrived in await queue.messages()] == ["next"]


@pytest.mark.parametrize("queue", ["nats", "kafka", "sqs"], indirect=True)  # others accept more than 100 MB
async def test_message_that_is_too_large_is_refused_at_once(queue: Queue, publishers: Publishers) -> None:
    with pytest.raises(SendRefused):
        await publishers.publish(parse_broker(queue.address()), Message(key="large", body=bytes(2**21)), timeout=10)
    await publishers.publish(parse_broker(queue.address()), Message(key="small", body=BODY), timeout=10)
    assert [arrived.key for arrived in await queue.messages()] == ["small"]


@pytest.mark.parametrize("queue", ["nats", "redis", "rabbitmq"], indirect=True)  # stand-ins check no password
async def test_wrong_password_is_a_failure_that_does_not_show_it(
    queue: Queue, publishers: Publishers, caplog: pytest.LogCaptureFixture
) -> None:
    address = queue.address().replace(PASSWORD, "wrong-and-secret")
    with pytest.raises(SendFailed) as caught:
        await publishers.publish(parse_broker(address), Message(key="lost", body=BODY), timeout=10)
    assert "wrong-and-secret" not in f"{caught.value!r} {caplog.text}"
    assert await queue.messages() == []


def test_missing_client_library_is_a_configuration_error_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    address = parse_broker("rabbitmq://host/orders")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for check in (lambda: check_broker(address, "sources.stripe.forward"), lambda: make_publisher(address)):
        with pytest.raises(ConfigurationError, match=r"needs its client: pip install 'oncehook\[rabbitmq\]'"):
            check()
