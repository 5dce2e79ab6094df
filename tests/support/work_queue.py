"""Inboxes whose workers get their events from SQS, and what the queue has."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from oncehook import Event, Inbox
from oncehook.worker.queue import feed
from oncehook.worker.queue.message import QueueMessage
from tests.support.aws import Moto
from tests.support.proxy import Proxy, proxied

LEASE = 1.5
"""The lease of these inboxes in seconds, and so the visibility of messages. A sweep is due every third of it."""


class WorkQueue:
    """A queue of the stand-in, and what a test needs to know of it."""

    def __init__(self, moto: Moto, name: str = "", *, max_receives: int | None = None, **attributes: str) -> None:
        self.moto = moto
        self.dead_letters = None if max_receives is None else moto.queue(name.replace(".fifo", "-dead.fifo"))
        if self.dead_letters is not None:
            arn = self.attributes(self.dead_letters)["QueueArn"]
            policy = {"deadLetterTargetArn": arn, "maxReceiveCount": max_receives}
            attributes["RedrivePolicy"] = json.dumps(policy)
        self.url = moto.queue(name, **attributes)

    def attributes(self, url: str | None = None) -> dict[str, str]:
        found = self.moto.call("sqs", "GetQueueAttributes", QueueUrl=url or self.url, AttributeNames=["All"])
        attributes: dict[str, str] = found["Attributes"]
        return attributes

    def count(self, url: str | None = None) -> int:
        """The number of messages, whether they are visible or not."""
        attributes = self.attributes(url)
        names = ("", "NotVisible", "Delayed")
        return sum(int(attributes[f"ApproximateNumberOfMessages{name}"]) for name in names)

    @property
    def dead_count(self) -> int:
        return self.count(self.dead_letters)

    @property
    def is_empty(self) -> bool:
        return self.count() == 0

    def put(self, *bodies: Any) -> None:
        """Send messages as anyone can who may write to the queue. A text is sent as it is, all else as JSON."""
        for body in bodies:
            text = body if isinstance(body, str) else json.dumps(body)
            parameters = {"QueueUrl": self.url, "MessageBody": text}
            if self.url.endswith(".fifo"):
                parameters |= {"MessageGroupId": "test", "MessageDeduplicationId": str(hash(text))}
            self.moto.call("sqs", "SendMessage", **parameters)

    def lose(self) -> None:
        """Delete up to ten messages that wait. SQS allows a purge only once a minute."""
        found = self.moto.call("sqs", "ReceiveMessage", QueueUrl=self.url, MaxNumberOfMessages=10, WaitTimeSeconds=0)
        for message in found.get("Messages", ()):
            self.moto.call("sqs", "DeleteMessage", QueueUrl=self.url, ReceiptHandle=message["ReceiptHandle"])

    def purge(self) -> None:
        self.moto.call("sqs", "PurgeQueue", QueueUrl=self.url)


MakeInbox = Callable[..., Inbox]
"""Makes an inbox with a worker that gets its events from a queue, and from it alone."""


def never_query(monkeypatch: Any) -> None:
    """Let workers get receipts from the queue only, not also from a rare query of the database."""

    def must_query(self: feed.QueueFeed) -> bool:
        return False

    monkeypatch.setattr(feed.QueueFeed, "_must_query", property(must_query))


def count_calls(inbox: Inbox, **options: Any) -> list[str]:
    """Register a handler of all Stripe events. Returns the ids of the events that it gets."""
    calls: list[str] = []

    @inbox.on("stripe", "*", **options)
    async def handle(event: Event) -> None:
        calls.append(event.id)

    return calls


def messages_of(inbox: Inbox) -> list[QueueMessage]:
    """The messages that the worker has."""
    assert inbox._runtime.work_queue is not None
    return inbox._runtime.work_queue.feeds["main"].messages


@asynccontextmanager
async def through_proxy(queue: WorkQueue, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    """Let the inboxes that start in this block reach the queue through a proxy."""
    async with proxied(f"{queue.moto.url}/") as (proxy, address):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address.rstrip("/"))
        yield proxy
