"""The consumer of a queue: lag, problems, and messages whose reading fails."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.intake.broker import Message
from oncehook.intake.consumer import IntakeConsumer
from oncehook.intake.kafka import KafkaBroker
from oncehook.intake.nats import NatsBroker
from oncehook.intake.reader import MessageReader
from oncehook.model.errors import BrokerUnavailable
from oncehook.model.receipt import Filter
from oncehook.testing import deliver
from tests.support.encryption import ring
from tests.support.events import STRIPE_SECRET, stripe_body
from tests.support.intake import BrokerQueue, assert_claimed, event_ids, intake_inbox, intakes_of, message, send
from tests.support.proxy import proxied
from tests.support.servers import Postgres
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

LARGE = "x" * 1_500_000
"""Text that does not fit into a message."""


def consumer_of(inbox: Inbox) -> IntakeConsumer:
    (consumer,) = intakes_of(inbox).consumers
    return consumer


def inbox_with_payload_store(database: str, queue: BrokerQueue, folder: Path) -> Inbox:
    inbox = Inbox(database, poll="50ms", keys=ring("2026a"), payload_store=f"file://{folder}", max_body="2MiB")
    inbox.source("stripe", secrets=[STRIPE_SECRET], intake=queue.intake, unhandled="wait")
    return inbox


def objects_of_messages(folder: Path) -> list[Path]:
    return list(folder.glob("intake/*"))


async def test_lag_and_problem_are_shown_while_the_database_is_down(postgres: Postgres, queue: BrokerQueue) -> None:
    async with proxied(postgres.database()) as (proxy, address):
        inbox = intake_inbox(address, queue, claim_timeout="1s")
        async with inbox.lifespan():
            consumer = consumer_of(inbox)
            assert (consumer.lag, consumer.problem) == (0.0, None)
            proxy.refuse()
            await send(inbox, "evt_1")
            await eventually(lambda: consumer.problem is not None, "the consumer reports that the database is down")
            await eventually(lambda: consumer.lag > 0.2, "the lag grows")
            proxy.accept()
            await assert_claimed(inbox, queue, "evt_1")
            await eventually(lambda: consumer.problem is None, "the consumer reports that it claims again")


async def test_message_whose_reading_fails_unexpectedly_is_set_aside(
    sqlite: str, queue: BrokerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = MessageReader.read

    async def fail_once(reader: MessageReader, received: object) -> object:
        claims = await read(reader, received)  # type: ignore[arg-type]
        if claims[0].event_id == "evt_bug":
            raise ZeroDivisionError
        return claims

    monkeypatch.setattr(MessageReader, "read", fail_once)
    await queue.put(message("evt_bug"))
    await queue.put(message("evt_good"))
    inbox = intake_inbox(sqlite, queue)
    async with inbox.lifespan():

        async def is_settled() -> bool:
            return await event_ids(inbox) == ["evt_good"] and await queue.dead() == 1

        await eventually(is_settled, "the other message is claimed, and the one that fails is kept")


@pytest.mark.parametrize("queue", ["kafka"], indirect=True)  # SQS and NATS deliver again by themselves
async def test_messages_whose_rejection_fails_are_delivered_and_rejected_again(
    sqlite: str, queue: BrokerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    reject, failures = KafkaBroker.reject, ["the broker is down"]

    async def fail_once(broker: KafkaBroker, *args: Any) -> None:
        if failures:
            raise BrokerUnavailable(failures.pop())
        await reject(broker, *args)

    monkeypatch.setattr(KafkaBroker, "reject", fail_once)
    for number in range(8):
        await queue.put(b"%d is not sealed" % number)
    inbox = intake_inbox(sqlite, queue)
    async with inbox.lifespan():

        async def are_rejected() -> bool:
            return await queue.dead() == 8 and await queue.messages() == 0

        await eventually(are_rejected, "every message is set aside, and none is held")
    assert failures == [], "the first rejection must have failed"


@pytest.mark.parametrize("queue", ["sqs", "nats"], indirect=True)  # the mock of Kafka takes ten seconds
async def test_message_that_is_sealed_with_a_missing_key_is_kept_until_the_process_has_it(
    sqlite: str, queue: BrokerQueue
) -> None:
    receiver = Inbox(sqlite, worker=False, poll="50ms", keys=ring("2026b", "2026a"))
    receiver.source("stripe", secrets=[STRIPE_SECRET], intake=queue.intake)
    async with receiver.lifespan():
        await send(receiver, "evt_1")
    behind = intake_inbox(sqlite, queue)  # it was restarted before it got the new key
    async with behind.lifespan():
        consumer = consumer_of(behind)
        await eventually(lambda: "2026b is missing" in (consumer.problem or ""), "the consumer names the missing key")
        assert (await event_ids(behind), await queue.messages()) == ([], 1), "an acked event stays in the queue"
    complete = Inbox(sqlite, poll="50ms", keys=ring("2026b", "2026a"))
    complete.source("stripe", secrets=[STRIPE_SECRET], intake=queue.intake)
    async with complete.lifespan():
        await assert_claimed(complete, queue, "evt_1")


@pytest.mark.parametrize("queue", ["nats"], indirect=True)
async def test_messages_that_wait_for_a_missing_key_are_set_aside_when_too_many_wait(
    sqlite: str, queue: BrokerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.intake.consumer.MAX_PARKED", 1)
    receiver = Inbox(sqlite, worker=False, poll="50ms", keys=ring("2026b", "2026a"))
    receiver.source("stripe", secrets=[STRIPE_SECRET], intake=queue.intake)
    behind = intake_inbox(sqlite, queue)  # its key is missing
    async with receiver.lifespan(), behind.lifespan():
        consumer = consumer_of(behind)
        await send(receiver, "evt_1")
        await eventually(lambda: len(consumer._parked) == 1, "the first message is held")
        await send(receiver, "evt_2")

        async def is_set_aside() -> bool:
            return await queue.dead() == 1

        await eventually(is_set_aside, "the second message is set aside")
        assert len(consumer._parked) == 1


@pytest.mark.parametrize("queue", ["nats"], indirect=True)
async def test_held_message_is_extended_again_after_an_extension_has_failed(
    sqlite: str, queue: BrokerQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the broker delivers it again and again, and sets it aside as a dead letter in the end."""
    extended: list[int] = []
    extend = NatsBroker.extend
    failures: list[str] = []

    async def fail_once(broker: NatsBroker, messages: Sequence[Message]) -> None:
        if failures:
            raise BrokerUnavailable(failures.pop())
        await extend(broker, messages)
        extended.append(len(messages))

    monkeypatch.setattr(NatsBroker, "extend", fail_once)
    monkeypatch.setattr(NatsBroker, "extend_every", 0.05)
    receiver = Inbox(sqlite, worker=False, poll="50ms", keys=ring("2026b", "2026a"))
    receiver.source("stripe", secrets=[STRIPE_SECRET], intake=queue.intake)
    async with receiver.lifespan():
        await send(receiver, "evt_1")
    behind = intake_inbox(sqlite, queue)  # its key is missing, so it holds the message
    async with behind.lifespan():
        consumer = consumer_of(behind)
        await eventually(lambda: consumer._parked and extended[-1:] == [1], "the message is held and extended")
        failures.append("the broker is down")
        await eventually(lambda: not failures, "an extension fails")
        extended.clear()
        await eventually(lambda: 1 in extended, "the consumer extends the message again", within=10)


@pytest.mark.parametrize("queue", ["sqs"], indirect=True)
async def test_delivery_that_is_larger_than_a_message_is_claimed_from_the_payload_store(
    sqlite: str, queue: BrokerQueue, tmp_path: Path
) -> None:
    inbox = inbox_with_payload_store(sqlite, queue, tmp_path)
    async with inbox.lifespan():
        body = stripe_body("evt_large", note=LARGE)
        assert (await deliver(inbox, "stripe", body)).outcome == (202, "accepted")
        await assert_claimed(inbox, queue, "evt_large")
        (receipt,) = await inbox._runtime.store.receipts.find(Filter(), limit=1)
        payload = await inbox._runtime.store.receipts.payload(receipt.receipt)
        assert payload is not None and payload.body == body
        assert receipt.origin == intakes_of(inbox).consumers[0].broker.name, "it was not claimed directly"
        await eventually(lambda: not objects_of_messages(tmp_path), "the object of the message is deleted")


@pytest.mark.parametrize("queue", ["sqs"], indirect=True)
async def test_object_of_a_message_is_kept_until_the_message_is_acked(
    sqlite: str, queue: BrokerQueue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an ack, the broker delivers the message again. Without its object, it would be rejected then."""
    inbox = inbox_with_payload_store(sqlite, queue, tmp_path)
    async with inbox.lifespan():
        broker = consumer_of(inbox).broker
        ack, kept = broker.ack, []

        async def observed_ack(messages: Sequence[Message]) -> None:
            kept.append(len(objects_of_messages(tmp_path)))
            await ack(messages)

        monkeypatch.setattr(broker, "ack", observed_ack)
        assert (await send(inbox, "evt_large", note=LARGE)).outcome == (202, "accepted")
        await eventually(lambda: not objects_of_messages(tmp_path), "the object of the message is deleted")
        assert kept == [1]


async def test_messages_with_a_missing_key_do_not_delay_others(sqlite: str, queue: BrokerQueue) -> None:
    """A program that may write to the queue could otherwise stop it with one message."""
    await queue.put(b"oncehook1:2099:AAAA")
    inbox = intake_inbox(sqlite, queue)
    async with inbox.lifespan():
        consumer = consumer_of(inbox)
        await eventually(lambda: "2099 is missing" in (consumer.problem or ""), "the consumer names the missing key")
        await send(inbox, "evt_1")

        async def is_claimed() -> bool:
            return await event_ids(inbox) == ["evt_1"]

        await eventually(is_claimed, "the next message is claimed")
