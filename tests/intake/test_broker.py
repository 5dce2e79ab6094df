"""What an intake promises, on every broker: events are claimed once, acked after the commit, and never lost.

A broker is added in `conftest.py`. It then runs this suite.
"""

import random
from collections.abc import Callable

import pytest

from oncehook.config.keyring import KeyRing
from oncehook.observability.metrics import TALLY
from oncehook.testing import post
from tests.support.encryption import assert_stored_nowhere
from tests.support.events import stripe_body, stripe_headers
from tests.support.intake import (
    BrokerQueue,
    assert_claimed,
    event_ids,
    intake_inbox,
    intakes_of,
    message,
    send,
    stored,
)
from tests.support.proxy import proxied
from tests.support.servers import Postgres
from tests.support.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.sampled(1)]


Count = Callable[[], float]


def rejections(reason: str) -> Count:
    """How many messages of the source were rejected for this reason since now."""
    key = "oncehook_rejected_total", "stripe", reason
    before = TALLY.counters[key]
    return lambda: TALLY.counters[key] - before


# -- deliveries that the receiver publishes ---------------------------------------------------------------------------


async def test_published_delivery_is_accepted_without_a_receipt_and_claimed(sqlite: str, queue: BrokerQueue) -> None:
    inbox = intake_inbox(sqlite, queue)
    async with inbox.lifespan():
        response = await send(inbox, "evt_1")
        assert (response.status, response.json) == (202, {"status": "accepted", "event_id": "evt_1"})
        await assert_claimed(inbox, queue, "evt_1")
        (receipt,) = await stored(inbox)
        assert receipt.as_json()["origin"].startswith(queue.intake.partition(":")[0] + ":")


async def test_deliveries_are_accepted_while_the_database_is_down_and_claimed_afterwards(
    postgres: Postgres, queue: BrokerQueue
) -> None:
    async with proxied(postgres.database()) as (proxy, address):
        inbox = intake_inbox(address, queue)
        async with inbox.lifespan():
            assert (await send(inbox, "evt_before")).status == 202
            await assert_claimed(inbox, queue, "evt_before")
            proxy.refuse()
            statuses = [(await send(inbox, f"evt_{i}")).status for i in range(5)]
            assert statuses == [202] * 5
            proxy.accept()
            await assert_claimed(inbox, queue, "evt_before", *(f"evt_{i}" for i in range(5)))


async def test_receiver_claims_directly_while_the_broker_is_down(sqlite: str, queue: BrokerQueue) -> None:
    inbox = intake_inbox(sqlite, queue)
    async with inbox.lifespan():
        await queue.cut()
        response = await send(inbox, "evt_1")
        assert response.outcome == (202, "accepted") and response.receipt is not None
        assert (await send(inbox, "evt_1")).was_duplicate
        await queue.heal()
        await assert_claimed(inbox, queue, "evt_1")


async def test_consumer_continues_when_the_broker_is_back(sqlite: str, queue: BrokerQueue) -> None:
    inbox = intake_inbox(sqlite, queue)
    async with inbox.lifespan():
        await send(inbox, "evt_before")
        await assert_claimed(inbox, queue, "evt_before")
        await queue.cut()
        await queue.put(message("evt_after"))
        await queue.heal()
        await assert_claimed(inbox, queue, "evt_after", "evt_before")


async def test_inbox_starts_while_the_broker_is_down(sqlite: str, queue: BrokerQueue) -> None:
    await queue.cut()
    inbox = intake_inbox(sqlite, queue)
    async with inbox.lifespan():
        assert (await send(inbox, "evt_1")).status == 202
        await queue.heal()
        await queue.put(message("evt_2"))
        await assert_claimed(inbox, queue, "evt_1", "evt_2")


async def test_delivery_that_is_too_large_for_the_broker_is_claimed_directly(sqlite: str, queue: BrokerQueue) -> None:
    inbox = intake_inbox(sqlite, queue, max_body="20MiB")
    async with inbox.lifespan():
        response = await send(inbox, "evt_1", filler="x" * (12 * 2**20))
        assert response.outcome == (202, "accepted") and response.receipt is not None
        await assert_claimed(inbox, queue, "evt_1")


async def test_consumer_that_stops_leaves_its_messages_in_the_queue(postgres: Postgres, queue: BrokerQueue) -> None:
    direct = postgres.database()
    async with proxied(direct) as (proxy, address):
        inbox = intake_inbox(address, queue, claim_timeout="1s")
        async with inbox.lifespan():
            proxy.refuse()
            assert (await send(inbox, "evt_1")).status == 202
            (consumer,) = intakes_of(inbox).consumers
            await eventually(lambda: consumer.problem is not None, "the consumer has noticed that the database is down")
        proxy.accept()
    inbox = intake_inbox(direct, queue)
    async with inbox.lifespan():
        await assert_claimed(inbox, queue, "evt_1")


# -- what a broker may do ---------------------------------------------------------------------------------------------


async def test_message_that_the_broker_delivers_twice_is_one_event(sqlite: str, queue: BrokerQueue) -> None:
    inbox = intake_inbox(sqlite, queue)
    for _ in range(2):
        await queue.put(message("evt_1"))
    async with inbox.lifespan():
        await assert_claimed(inbox, queue, "evt_1")


async def test_messages_out_of_order_are_all_claimed(sqlite: str, queue: BrokerQueue) -> None:
    ids = [f"evt_{i:02}" for i in range(30)]
    for event_id in random.Random(1).sample(ids, len(ids)):
        await queue.put(message(event_id))
    inbox = intake_inbox(sqlite, queue)
    async with inbox.lifespan():
        await assert_claimed(inbox, queue, *ids)


# -- hostile messages -------------------------------------------------------------------------------------------------

FORGED = {
    "not_an_envelope": (b'{"id":"evt_forged"}', "malformed"),
    "not_base64": (b"oncehook1:2026a:%%%", "malformed"),
    "empty_seal": (b"oncehook1:2026a:", "bad_signature"),
    "unsealed": (message("evt_forged", ring=KeyRing()), "bad_signature"),
    "other_source": (message("evt_forged", source="github"), "bad_signature"),
    "older_than_the_dedupe_window": (message("evt_forged", received_at=0.0), "stale_timestamp"),
    "body_that_is_no_json": (message("evt_forged", body=b"\xff\x00"), "malformed"),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", FORGED)
async def test_message_that_cannot_be_claimed_is_set_aside_and_others_do_not_wait(
    sqlite: str, queue: BrokerQueue, name: str
) -> None:
    body, reason = FORGED[name]
    count = rejections(reason)
    await queue.put(body)
    await queue.put(message("evt_good"))
    inbox = intake_inbox(sqlite, queue)
    async with inbox.lifespan():
        await eventually(lambda: count() >= 1, f"the message is rejected as {reason}")

        async def is_claimed() -> bool:
            return await event_ids(inbox) == ["evt_good"] and await queue.dead() == 1

        await eventually(is_claimed, "the other message is claimed, and the rejected one is kept")
        (sample,) = await inbox._runtime.store.rejections.find("stripe")
        assert sample.reason == reason


async def test_authentic_event_without_an_id_is_a_failed_receipt(sqlite: str, queue: BrokerQueue) -> None:
    await queue.put(message("evt_1", body=b'{"type":"invoice.paid"}'))
    inbox = intake_inbox(sqlite, queue)
    async with inbox.lifespan():
        await eventually(lambda: event_ids(inbox), "the event is recorded")
        (receipt,) = await stored(inbox)
        assert (receipt.status, receipt.event_id[:7]) == ("failed", "sha256:")


# -- messages of others -----------------------------------------------------------------------------------------------


async def test_signed_message_of_others_is_verified_and_claimed(sqlite: str, queue: BrokerQueue) -> None:
    good, bad = stripe_body("evt_good"), stripe_body("evt_bad")
    count = rejections("bad_signature")
    await queue.put(good, {"Stripe-Signature": stripe_headers(good)["Stripe-Signature"]})
    await queue.put(bad, {"Stripe-Signature": stripe_headers(good)["Stripe-Signature"]})
    inbox = intake_inbox(sqlite, queue, intake_format="http")
    async with inbox.lifespan():
        await eventually(lambda: event_ids(inbox), "the signed event is claimed")
        await eventually(lambda: count() >= 1, "the other one is rejected")
        assert await event_ids(inbox) == ["evt_good"]


async def test_unsigned_message_is_claimed_if_the_source_trusts_its_queue(sqlite: str, queue: BrokerQueue) -> None:
    await queue.put(stripe_body("evt_1"))
    inbox = intake_inbox(sqlite, queue, intake_format="http", intake_trust="queue", secrets=[])
    async with inbox.lifespan():
        await assert_claimed(inbox, queue, "evt_1")
        assert (await send(inbox, "evt_2")).outcome == (404, "unknown_source")


# -- tenants and encryption -------------------------------------------------------------------------------------------


async def test_delivery_to_a_tenant_is_claimed_for_that_tenant(sqlite: str, queue: BrokerQueue) -> None:
    secrets = {"acme": ["whsec_acme"], "globex": ["whsec_globex"]}
    inbox = intake_inbox(sqlite, queue, secrets=[], secrets_for=secrets.get)
    async with inbox.lifespan():
        for tenant in secrets:
            body = stripe_body("evt_1")
            response = await post(inbox, f"stripe/{tenant}", body, stripe_headers(body, f"whsec_{tenant}"))
            assert response.status == 202 and response.receipt is None
        await assert_claimed(inbox, queue, "evt_1", "evt_1")
        assert sorted(receipt.tenant for receipt in await stored(inbox)) == ["acme", "globex"]


async def test_events_of_an_encrypted_source_are_readable_nowhere(sqlite: str, queue: BrokerQueue) -> None:
    inbox = intake_inbox(sqlite, queue, encrypt=True)
    async with inbox.lifespan():
        assert (await send(inbox, "evt_1", note="canary-text")).receipt is None
        await assert_claimed(inbox, queue, "evt_1")
    assert_stored_nowhere(sqlite, "canary-text")
