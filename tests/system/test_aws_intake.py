"""Queues of SQS that AWS fills: SNS, API Gateway and EventBridge. SNS → SQS is moto's, and the events of EventBridge
have the shape that the partners document."""

import json
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.providers.definition import find
from oncehook.providers.sample import compose
from oncehook.testing import make_pair, post, sign
from tests.support.aws import Moto, environment
from tests.support.events import STRIPE_SECRET, stripe_body, stripe_headers
from tests.support.intake import event_ids, stored
from tests.support.ministack import ministack
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


def send(aws: Moto, queue: str, body: Any, **headers: str) -> None:
    """Send a message as AWS does, with headers as attributes."""
    text = body if isinstance(body, str) else json.dumps(body)
    attributes = {
        name.replace("_", "-"): {"DataType": "String", "StringValue": value} for name, value in headers.items()
    }
    aws.call("sqs", "SendMessage", QueueUrl=queue, MessageBody=text, MessageAttributes=attributes)


def bus_event(partner: str, type_: str, detail: Any) -> dict[str, Any]:
    """An event as EventBridge puts it into a queue."""
    return {
        "version": "0",
        "id": "97faefa0-b994-1c30-5dfa-95836afeb7b0",
        "detail-type": type_,
        "source": f"aws.partner/{partner}",
        "account": "123456789012",
        "time": "2026-11-17T18:00:00Z",
        "region": "eu-central-1",
        "resources": [f"arn:aws:events:eu-central-1::event-source/aws.partner/{partner}"],
        "detail": detail,
    }


def sns(aws: Moto, **parameters: str) -> str:
    """Call SNS, independent of the code under test, and return its response."""
    request = urllib.request.Request(aws.url, urllib.parse.urlencode({"Version": "2010-03-31", **parameters}).encode())
    credential = "AWS4-HMAC-SHA256 Credential=testing/20260101/eu-central-1/sns/aws4_request"
    request.add_header("Authorization", credential)
    with urllib.request.urlopen(request, timeout=30) as response:
        text: str = response.read().decode()
        return text


def subscribed_topic(aws: Moto, queue: str, *, raw: bool) -> str:
    """A topic of SNS whose messages go to the queue."""
    created = sns(aws, Action="CreateTopic", Name=f"topic-{queue.rpartition('/')[2]}")
    topic = created.partition("<TopicArn>")[2].partition("</TopicArn>")[0]
    arn = aws.call("sqs", "GetQueueAttributes", QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    raw_delivery = {
        "Attributes.entry.1.key": "RawMessageDelivery",
        "Attributes.entry.1.value": "true" if raw else "false",
    }
    sns(aws, Action="Subscribe", TopicArn=topic, Protocol="sqs", Endpoint=arn, **raw_delivery)
    return topic


async def assert_claims(inbox: Inbox, *ids: str) -> None:
    async with inbox.lifespan():

        async def has_all() -> bool:
            return await event_ids(inbox) == sorted(ids)

        await eventually(has_all, f"the events {', '.join(ids)} are claimed")


@pytest.mark.parametrize("raw", [False, True])
async def test_delivery_that_was_published_to_sns_is_verified_by_its_signature(
    aws: Moto, sqlite: str, raw: bool
) -> None:
    queue, body = aws.queue(), stripe_body("evt_1").decode()
    topic = subscribed_topic(aws, queue, raw=raw)
    signature = stripe_headers(body.encode())["Stripe-Signature"]
    for text in (body, body.replace("evt_1", "evt_forged")):
        attribute = {
            "MessageAttributes.entry.1.Name": "Stripe-Signature",
            "MessageAttributes.entry.1.Value.DataType": "String",
            "MessageAttributes.entry.1.Value.StringValue": signature,
        }
        sns(aws, Action="Publish", TopicArn=topic, Message=text, **attribute)
    inbox = Inbox(sqlite)
    inbox.source("stripe", secrets=[STRIPE_SECRET], intake=f"sqs:{queue}", intake_format="http" if raw else "sns")
    await assert_claims(inbox, "evt_1")


async def test_notification_of_ses_is_verified_by_the_signature_of_sns(aws: Moto, sqlite: str) -> None:
    queue, pair = aws.queue(), make_pair("ses")
    sample = compose(find("ses", {}), "Bounce", pair.signing, now=time.time())
    send(aws, queue, sample.body.decode())
    send(aws, queue, sample.body.decode().replace("ses-", "forged-"))
    inbox = Inbox(sqlite)
    inbox.source(
        "ses",
        secrets=[pair.verifying],
        topics=["arn:aws:sns:*"],
        intake=f"sqs:{queue}",
        intake_format="http",
    )
    await assert_claims(inbox, json.loads(sample.body)["MessageId"])


async def test_request_behind_api_gateway_is_verified_over_its_raw_body(aws: Moto, sqlite: str) -> None:
    queue, body = aws.queue(), b'{"ref": "refs/heads/main",  "name": "\xc3\xa9"}'
    headers = sign("github", body, "github-secret")
    attributes = {"X_Hub_Signature_256": headers["X-Hub-Signature-256"], "X_GitHub_Event": "push"}
    send(aws, queue, body.decode(), X_GitHub_Delivery="d-1", **attributes)
    inbox = Inbox(sqlite)
    inbox.source("github", secrets=["github-secret"], intake=f"sqs:{queue}", intake_format="http")
    await assert_claims(inbox, "d-1")


EVENTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "stripe": (
        bus_event("stripe.com/ed_test_1", "invoice.paid", json.loads(stripe_body("evt_1"))),
        "evt_1",
        "invoice.paid",
    ),
    "shopify": (
        bus_event(
            "shopify.com/1234567/orders",
            "shopifyWebhook",
            {
                "payload": {"id": 7, "admin_graphql_api_id": "gid://shopify/Order/7"},
                "metadata": {
                    "Content-Type": "application/json",
                    "X-Shopify-Topic": "orders/create",
                    "X-Shopify-Shop-Domain": "example.myshopify.com",
                    "X-Shopify-Hmac-SHA256": "not kept",
                    "X-Shopify-Webhook-Id": "w-1",
                    "X-Shopify-Event-Id": "e-1",
                },
            },
        ),
        "w-1",
        "orders/create",
    ),
    "chargebee": (
        bus_event(
            "chargebee.com/acme_eventstream",
            "subscription_created",
            {
                "id": "ev_1",
                "occurred_at": 1763200000,
                "event_type": "subscription_created",
                "content": {"subscription": {"id": "sub_1"}},
            },
        ),
        "ev_1",
        "subscription_created",
    ),
}


@pytest.mark.parametrize("provider", EVENTS)
async def test_partner_event_of_eventbridge_is_the_event_that_http_would_deliver(
    aws: Moto, sqlite: str, provider: str
) -> None:
    event, event_id, type_ = EVENTS[provider]
    queue = aws.queue()
    send(aws, queue, event)
    send(aws, queue, {**event, "source": "custom.app"})  # not from the partner
    send(aws, queue, event)  # EventBridge delivers at least once
    inbox = Inbox(sqlite)
    inbox.source(provider, intake=f"sqs:{queue}", intake_format="eventbridge", intake_trust="queue")
    async with inbox.lifespan():
        await eventually(lambda: event_ids(inbox), "the event is claimed")
        (receipt,) = await stored(inbox)
        assert (receipt.event_id, receipt.type) == (event_id, type_)
        payload = await inbox._runtime.store.receipts.payload(receipt.receipt)
        assert payload is not None and b"not kept" not in payload.body + json.dumps(payload.headers).encode()


async def test_event_over_http_and_over_eventbridge_is_one_event(aws: Moto, sqlite: str) -> None:
    queue, body = aws.queue(), stripe_body("evt_1")
    inbox = Inbox(sqlite)
    inbox.source(
        "stripe",
        secrets=[STRIPE_SECRET],
        intake=f"sqs:{queue}",
        intake_format="eventbridge",
        intake_trust="queue",
    )
    async with inbox.lifespan():
        send(aws, queue, EVENTS["stripe"][0])
        await eventually(lambda: event_ids(inbox), "the event is claimed from the queue")
        assert (await post(inbox, "stripe", body, stripe_headers(body))).was_duplicate


ACME = """
[providers.acme]
signatures = [{ algorithm = "token", header = "Authorization" }]
event = { id = "id", type = "type" }
eventbridge = { source = "acme.*" }

[sources.acme]
intake_format = "eventbridge"
intake_trust = "queue"
"""


@pytest.mark.rest
async def test_events_that_a_rule_of_eventbridge_sends_to_a_queue_are_claimed(
    sqlite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ministack forwards no partner events, so the events have the source of an app."""
    with ministack(tmp_path) as server:
        for name, value in environment(server.url).items():
            monkeypatch.setenv(name, value)
        queue = server.queue_behind_a_bus("acme", "acme.billing")
        for number in range(3):
            server.put_event("acme", "acme.billing", "paid", {"id": f"evt_{number}", "type": "paid"})
        server.put_event("acme", "other.app", "paid", {"id": "evt_other", "type": "paid"})
        config = tmp_path / "oncehook.toml"
        config.write_text(f'database = "{sqlite}"\n{ACME}intake = "sqs:{queue}"\n')
        inbox = Inbox(config=config)
        await assert_claims(inbox, "evt_0", "evt_1", "evt_2")
