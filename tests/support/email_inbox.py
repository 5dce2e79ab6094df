"""An inbox with email sources, payloads to it, and the tables of its projection."""

import json
from collections.abc import Callable
from typing import Any

from oncehook import Inbox
from oncehook.testing import DeliveryResponse, drain, post
from tests.support.servers import run_sql
from tests.support.waiting import eventually

STATUSES = "SELECT message_id, recipient, status, bounce FROM webhook_email_status ORDER BY message_id, recipient"
FACTS = "SELECT source, key, type, recipient FROM webhook_email_events ORDER BY source, key"
START = 1763200000
"""The time of the first event in these tests."""


def make_email_inbox(make_inbox: Callable[..., Inbox], **settings: Any) -> Inbox:
    """Make an inbox with a worker and unsigned email sources."""
    inbox = make_inbox(worker=True, **settings)
    for name in ("sendgrid", "postmark", "mailgun"):
        inbox.source(name, verify="none", email=True)
    inbox.source("ses", verify="none", topics=["*"], email=True)
    return inbox


async def send_payload(inbox: Inbox, source: str, payload: Any) -> DeliveryResponse:
    """Deliver a payload, given as data or as bytes."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return await post(inbox, source, body, {"Content-Type": "application/json"})


async def send_email_events(inbox: Inbox, *events: dict[str, Any]) -> None:
    """Deliver events of SendGrid in one payload, and process them."""
    await send_payload(inbox, "sendgrid", events)
    await drain(inbox)


async def wait_until_settled(database: str) -> None:
    """Wait until every event is processed or failed."""
    waiting = "SELECT count(*) FROM webhook_receipts WHERE status IN ('received', 'processing', 'retrying')"
    await eventually(lambda: run_sql(database, waiting) == [(0,)], "every event is settled")
