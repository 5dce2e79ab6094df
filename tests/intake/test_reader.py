"""Reading a message: its age, the time as of which it is verified, its tenant, and the topics that are trusted."""

from typing import Any

import pytest

from oncehook.config.settings import SourceSettings
from oncehook.intake.broker import Message
from oncehook.intake.reader import MessageReader
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.model.tenant import TenantLimits
from oncehook.providers.source import Source
from tests.support.clocks import ManualClock
from tests.support.events import STRIPE_SECRET, stripe_body, stripe_headers
from tests.support.intake import keys, message

pytestmark = pytest.mark.anyio

DAY = 86400.0
NOW = 1_763_200_000.0
QUEUE = "sqs:https://sqs.eu-central-1.amazonaws.com/123456789012/orders"


async def verify(source: Source, delivery: Delivery, now: float) -> int:
    assert source.verifier is not None
    return source.verifier.verify(delivery, now)


def make_reader(clock: ManualClock, **settings: Any) -> MessageReader:
    values: dict[str, Any] = {"secrets": (STRIPE_SECRET,), "intake": QUEUE, **settings}
    source = Source("stripe", SourceSettings(**values), max_body=10_000)

    async def find_tenant(tenant: str) -> Source | None:
        return source.for_tenant(tenant, ["whsec_acme"]) if tenant == "acme" else None

    return MessageReader(
        source, keys(), origin="sqs:orders", verify=verify, find_tenant=find_tenant, max_age=30 * DAY, clock=clock
    )


def received(body: bytes, sent_at: float = NOW, /, **headers: str) -> Message:
    pairs = tuple((name.lower().replace("_", "-").encode(), value.encode()) for name, value in headers.items())
    return Message(id="m-1", body=body, headers=pairs, sent_at=sent_at, receives=1)


async def test_claims_of_a_published_delivery_have_their_origin() -> None:
    (claim,) = await make_reader(ManualClock(NOW)).read(received(message("evt_1", received_at=NOW)))
    assert (claim.event_id, claim.origin, claim.tenant) == ("evt_1", "sqs:orders", "")


async def test_tenant_of_a_published_delivery_is_the_one_that_the_receiver_found() -> None:
    reader = make_reader(ManualClock(NOW), tenants=TenantLimits())
    (claim,) = await reader.read(received(message("evt_1", received_at=NOW, tenant="acme")))
    assert claim.tenant == "acme"


async def test_signature_is_verified_as_of_the_time_at_which_the_broker_got_the_message() -> None:
    body = stripe_body("evt_1")
    signed = {"Stripe_Signature": stripe_headers(body, now=NOW)["Stripe-Signature"]}
    reader = make_reader(ManualClock(NOW + 5 * DAY), intake_format="http")
    (claim,) = await reader.read(received(body, NOW + 1, **signed))
    assert claim.event_id == "evt_1"
    with pytest.raises(Rejected, match="stale_timestamp"):  # a captured delivery that someone sends again
        await reader.read(received(body, NOW + 5 * DAY, **signed))


@pytest.mark.parametrize("settings", [{}, {"intake_format": "http", "intake_trust": "queue"}], ids=repr)
async def test_message_that_is_older_than_the_dedupe_window_is_rejected(settings: dict[str, Any]) -> None:
    reader = make_reader(ManualClock(NOW), **settings)
    body = stripe_body() if settings else message("evt_1", received_at=NOW)
    with pytest.raises(Rejected, match="older than the dedupe_window"):
        await reader.read(received(body, NOW - 31 * DAY))


async def test_delivery_that_is_older_than_its_message_and_the_dedupe_window_is_rejected() -> None:
    """An operator may have sent the message again, for example from a dead-letter queue."""
    old = message("evt_1", received_at=NOW - 31 * DAY)
    with pytest.raises(Rejected, match="older than the dedupe_window"):
        await make_reader(ManualClock(NOW)).read(received(old, NOW))


async def test_body_that_is_larger_than_max_body_is_rejected() -> None:
    large = message("evt_1", received_at=NOW, body=stripe_body("evt_1", filler="x" * 10_000))
    with pytest.raises(Rejected, match="larger than max_body"):
        await make_reader(ManualClock(NOW)).read(received(large))


async def test_message_of_others_is_verified_with_the_secret_of_its_tenant() -> None:
    reader = make_reader(ManualClock(NOW), intake_format="http", tenants=TenantLimits(), secrets=())
    body = stripe_body("evt_1")
    signed = {"Stripe_Signature": stripe_headers(body, "whsec_acme", NOW)["Stripe-Signature"]}
    (claim,) = await reader.read(received(body, Oncehook_Tenant="acme", **signed))
    assert (claim.event_id, claim.tenant) == ("evt_1", "acme")
    assert "oncehook-tenant" not in claim.headers
    for tenant in ("globex", ""):
        with pytest.raises(Rejected, match="names no tenant"):
            await reader.read(received(body, Oncehook_Tenant=tenant, **signed))


async def test_message_gives_a_provider_without_ids_the_same_id_each_time() -> None:
    reader = make_reader(ManualClock(NOW), intake_format="http", intake_trust="queue", id=("new:delivery",))
    (first,), (second,) = [await reader.read(received(stripe_body())) for _ in range(2)]
    assert first.event_id == second.event_id == "m-1"


async def test_notification_that_sns_did_not_sign_is_rejected_if_its_topic_is_trusted() -> None:
    topic = "arn:aws:sns:eu-central-1:123456789012:orders"
    reader = make_reader(ManualClock(NOW), intake_format="sns", intake_trust="topic", topics=(topic,))
    body = b'{"Type":"Notification","MessageId":"1","TopicArn":"%s","Message":"{}","Timestamp":"x"}' % topic.encode()
    with pytest.raises(Rejected, match="bad_signature"):
        await reader.read(received(body))
