"""Keys besides the event id that no two receipts of a source share, such as Mailgun's token."""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.testing import DeliveryResponse, post
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


EVENT: dict[str, Any] = {
    "event": "delivered",
    "id": "ev-1",
    "timestamp": 1763200000.25,
    "recipient": "jane@example.com",
}

KEY = "key-of-the-account"


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    """A started inbox with a Mailgun source, and one whose event ids are Mailgun's ids alone."""
    inbox = make_inbox()
    inbox.source("mailgun", secrets=[KEY])
    inbox.source("natural", provider="mailgun", secrets=[KEY], id="{event-data.id}")
    async with inbox.lifespan():
        yield inbox


async def deliver(inbox: Inbox, token: str, data: dict[str, Any], source: str = "mailgun") -> DeliveryResponse:
    """Deliver an event with a valid signature for this token."""
    now = str(int(time.time()))
    signature = hmac.new(KEY.encode(), (now + token).encode(), hashlib.sha256).hexdigest()
    body = {"signature": {"timestamp": now, "token": token, "signature": signature}, "event-data": data}
    return await post(inbox, source, json.dumps(body).encode(), {"Content-Type": "application/json"})


async def test_event_with_another_token_is_a_duplicate(inbox: Inbox, rows: Rows) -> None:
    first = await deliver(inbox, "token-1", EVENT)
    again = await deliver(inbox, "token-2", EVENT)
    assert (first.status, again.status) == (202, 200)
    assert again.json["status"] == "duplicate" and again.json["receipt"] == first.json["receipt"]
    other = await deliver(inbox, "token-3", {**EVENT, "timestamp": 1763286400.25})  # ids are unique within a day
    assert other.status == 202
    assert rows("SELECT count(*) FROM webhook_receipts") == [(2,)]


@pytest.mark.parametrize("source", ["mailgun", "natural"])
@pytest.mark.parametrize(
    "forged",
    [{**EVENT, "id": "ev-2", "event": "bounced"}, {"id": "ev-2"}, {**EVENT, "event": None}, {}],
    ids=["another event", "no type", "the same without a type", "nothing"],
)
async def test_captured_token_cannot_sign_a_second_event(
    inbox: Inbox, rows: Rows, source: str, forged: dict[str, Any]
) -> None:
    assert (await deliver(inbox, "token-1", EVENT, source)).status == 202
    answer = await deliver(inbox, "token-1", forged, source)
    assert (answer.status, answer.json["status"]) == (200, "duplicate")
    assert rows("SELECT count(*) FROM webhook_receipts") == [(1,)]


async def test_concurrent_claims_with_different_tokens_store_one_receipt(inbox: Inbox, rows: Rows) -> None:
    answers = await asyncio.gather(*(deliver(inbox, f"token-{number}", EVENT) for number in range(40)))
    assert sorted(answer.status for answer in answers) == [200] * 39 + [202]
    assert len({answer.json["receipt"] for answer in answers}) == 1
    assert rows("SELECT count(*) FROM webhook_receipts") == [(1,)]


async def test_keys_are_pruned_with_their_receipt(inbox: Inbox, rows: Rows) -> None:
    await deliver(inbox, "token-1", {**EVENT, "event": None})
    assert rows("SELECT count(*) FROM webhook_keys") == [(2,)]
    await deliver(inbox, "token-2", {**EVENT, "id": "ev-2"})
    receipts = [row[0] for row in rows("SELECT id FROM webhook_receipts WHERE status = 'received'")]
    rows(f"UPDATE webhook_receipts SET status = 'processed' WHERE id = {receipts[0]} RETURNING id")
    later = datetime.now(UTC) + timedelta(days=1)
    async with inbox._runtime.store.retention.start_pruning() as pruning:
        assert pruning is not None
        await pruning.prune_receipts({"mailgun": later}, None, 100)
    assert rows("SELECT count(*) FROM webhook_receipts") == [(1,)]
    assert rows("SELECT count(*) FROM webhook_keys") == [(2,)]
