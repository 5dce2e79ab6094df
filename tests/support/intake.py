"""Queues of private brokers, and inboxes whose sources have an intake: for the suite that every broker runs."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

from oncehook import Inbox
from oncehook.config.keyring import KeyRing, read_keys
from oncehook.intake.envelope import Envelope, seal
from oncehook.model.receipt import Filter, Receipt
from oncehook.runtime.intake import Intakes
from oncehook.testing import DeliveryResponse, post
from tests.support.aws import Moto, environment
from tests.support.encryption import ring
from tests.support.events import STRIPE_SECRET, stripe_body, stripe_headers
from tests.support.proxy import Proxy, proxied
from tests.support.waiting import eventually


class BrokerQueue(Protocol):
    """A queue for one test, and what a test does to it and to the link to its broker."""

    intake: str
    """The value of the setting `intake`."""

    environment: dict[str, str]
    """The variables that a process needs to reach the broker."""

    async def put(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a message as another program does, whatever the state of the link."""

    async def messages(self) -> int:
        """How many messages the queue has, whether they wait or a consumer holds them."""

    async def dead(self) -> int:
        """How many messages are set aside as dead letters, or hidden for that."""

    async def cut(self) -> None:
        """Stop the broker, or cut the link to it: nothing responds until `heal`."""

    async def heal(self) -> None:
        """Make the broker respond again."""


# -- SQS --------------------------------------------------------------------------------------------------------------


class SqsQueue:
    """A queue of moto with a dead-letter queue, and a proxy in front of moto that the inbox uses."""

    def __init__(self, moto: Moto, proxy: Proxy, url: str) -> None:
        self.moto = moto
        self.proxy = proxy
        self.environment = environment(url)
        self.dead_letters = moto.queue("-dead")
        arn = self._attributes(self.dead_letters)["QueueArn"]
        redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "10"})
        self.address = moto.queue(VisibilityTimeout="2", RedrivePolicy=redrive)
        self.intake = f"sqs:{self.address}"

    async def put(self, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in (headers or {}).items()}
        self.moto.call(
            "sqs", "SendMessage", QueueUrl=self.address, MessageBody=body.decode(), MessageAttributes=attributes
        )

    async def messages(self) -> int:
        attributes = self._attributes(self.address)
        return sum(int(attributes[f"ApproximateNumberOfMessages{kind}"]) for kind in ("", "NotVisible", "Delayed"))

    async def dead(self) -> int:
        """A rejected message is hidden, and goes to the dead-letter queue after ten receives."""
        return await self.messages() + int(self._attributes(self.dead_letters)["ApproximateNumberOfMessages"])

    async def cut(self) -> None:
        self.proxy.refuse()

    async def heal(self) -> None:
        self.proxy.accept()

    def _attributes(self, address: str) -> dict[str, str]:
        response = self.moto.call("sqs", "GetQueueAttributes", QueueUrl=address, AttributeNames=["All"])
        attributes: dict[str, str] = response["Attributes"]
        return attributes


@asynccontextmanager
async def sqs_queue(moto: Moto) -> AsyncIterator["SqsQueue"]:
    async with proxied(f"{moto.url}/") as (proxy, url):
        yield SqsQueue(moto, proxy, url.rstrip("/"))


# -- inboxes ----------------------------------------------------------------------------------------------------------


def keys(*ids: str) -> KeyRing:
    """The key ring of these inboxes."""
    return read_keys(ring(*ids or ("2026a",)))


def intake_inbox(database: str, queue: BrokerQueue, *, claim_timeout: str = "10s", **source: Any) -> Inbox:
    """An inbox whose Stripe source has this queue as its intake. It has a worker, so it claims from the queue."""
    inbox = Inbox(database, poll="50ms", keys=ring("2026a"), claim_timeout=claim_timeout)
    inbox.source("stripe", **{"secrets": [STRIPE_SECRET], "intake": queue.intake, "unhandled": "wait", **source})
    return inbox


def intakes_of(inbox: Inbox) -> Intakes:
    """The part of a running inbox that consumes."""
    return next(part for part in inbox._runtime.parts if isinstance(part, Intakes))


async def send(inbox: Inbox, event_id: str = "evt_1", to: str = "stripe", **more: Any) -> DeliveryResponse:
    """Deliver a signed Stripe event over HTTP."""
    body = stripe_body(event_id, **more)
    return await post(inbox, to, body, headers=stripe_headers(body))


def message(event_id: str = "evt_1", *, ring: KeyRing | None = None, **changes: Any) -> bytes:
    """The message that a receiver publishes for a Stripe event."""
    facts: dict[str, Any] = {
        "source": "stripe",
        "id": event_id,
        "received_at": 4e9,
        "body": stripe_body(event_id),
        "headers": [(b"content-type", b"application/json")],
    }
    return seal(Envelope(**facts | changes), keys() if ring is None else ring)


async def stored(inbox: Inbox) -> list[Receipt]:
    return await inbox._runtime.store.receipts.find(Filter(), limit=1000)


async def event_ids(inbox: Inbox) -> list[str]:
    """The events of an inbox, sorted."""
    return sorted(receipt.event_id for receipt in await stored(inbox))


async def assert_claimed(inbox: Inbox, queue: BrokerQueue, *ids: str) -> None:
    """Wait until the inbox has exactly these events, and the queue is empty."""

    async def is_done() -> bool:
        return await event_ids(inbox) == sorted(ids) and await queue.messages() == 0

    await eventually(is_done, f"the events {', '.join(ids)} are claimed, and their messages are acked")
