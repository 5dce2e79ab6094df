"""Odd email events: wrong clocks, invalid texts, and a projection that fails."""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncehook import Event, Inbox
from tests.support.email_inbox import START, make_email_inbox, send_payload, wait_until_settled
from tests.support.email_payloads import JANE, sendgrid, sns
from tests.support.events import Rows
from tests.support.servers import run_sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


async def test_time_far_in_the_future_is_replaced_by_the_time_of_arrival(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_email_inbox(make_inbox)
    async with inbox.lifespan():
        far: list[Any] = [9_999_999_999, "9999-12-31T23:59:59Z", int(time.time()) + 3 * 86400]
        mails = [{"email": f"r{n}@example.com", "sg_message_id": f"m{n}"} for n in range(3)]
        bounces = [
            sendgrid("bounce", at, type="bounce", sg_event_id=f"b{n}", **mail)
            for n, (at, mail) in enumerate(zip(far, mails, strict=True))
        ]
        queued = sendgrid("processed", far[0], sg_event_id="q", sg_message_id="m9")
        await send_payload(inbox, "sendgrid", [*bounces, queued])
        await wait_until_settled(database)
        latest = datetime.now(UTC) + timedelta(minutes=1)
        for mail in mails:
            blocked = await inbox.email.suppression(mail["email"])
            assert blocked is not None and datetime.fromisoformat(blocked["since"]) < latest
            await inbox.email.allow(mail["email"], actor="ops")
            assert await inbox.email.can_send(mail["email"])
        await send_payload(inbox, "sendgrid", [sendgrid("delivered", int(time.time()) + 60, sg_message_id="m9")])
        await wait_until_settled(database)
        assert rows("SELECT status FROM webhook_email_status WHERE message_id = 'm9'") == [("delivered",)]
        assert (await inbox.email.verify()).differences == []


async def test_invalid_texts_are_projected_at_the_first_attempt(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_email_inbox(make_inbox, max_body=4 * 2**20)
    odd: dict[str, Any] = {"k\x00\ud800": "\x00", "email": "ja\x00ne@example.com", "category": ["\x00", "\ud800"]}
    bodies = [
        json.dumps(sendgrid("bounce", sg_event_id="long", reason="x" * 1_000_000)),
        json.dumps(sendgrid("bounce", sg_event_id="nul", reason="a\x00b", **odd)),
        json.dumps(sendgrid("bounce", sg_event_id="half\ud800", sg_message_id="m\ud800", reason="\ud800")),
        json.dumps(sendgrid("bounce", sg_event_id="deep"))[:-1] + ', "x": ' + "[" * 400 + "]" * 400 + "}",
        json.dumps(sendgrid("bounce", sg_event_id="number"))[:-1] + ', "x": ' + "9" * 6000 + "}",
        json.dumps(sendgrid("bounce", sg_event_id="comment", email="(" * 5000 + "<@example.com")),
        json.dumps(sendgrid("bounce", sg_event_id="domain", email="a@" + "例え" * 5000)),
    ]
    to = [f"r{n}@example.com" for n in range(10_000)]
    mail = {"messageId": "m-many", "timestamp": "2025-11-15T09:46:39.5Z", "destination": to}
    delivery = {"timestamp": "2025-11-15T09:46:40Z", "recipients": to}
    async with inbox.lifespan():
        answer = await send_payload(inbox, "sendgrid", f"[{','.join(bodies)}]".encode())
        assert answer.json["accepted"] == len(bodies)
        await wait_until_settled(database)  # on SQLite, the 10,000 rows below would hold the write lock for seconds
        await send_payload(inbox, "ses", sns("Delivery", "eventType", 1, mail, delivery=delivery))
        await wait_until_settled(database)
    assert rows("SELECT status, attempts, count(*) FROM webhook_receipts GROUP BY status, attempts") == [
        ("processed", 1, len(bodies) + 1)
    ]
    assert rows("SELECT source, count(*) FROM webhook_email_events GROUP BY source ORDER BY source") == [
        ("sendgrid", len(bodies)),
        ("ses", 10_000),
    ]


REJECT_ONE = {
    "postgresql": [
        "CREATE FUNCTION reject_one() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this'; END $$",
        "CREATE TRIGGER reject_one BEFORE INSERT ON webhook_email_status FOR EACH ROW WHEN (NEW.message_id = 'm7') "
        "EXECUTE FUNCTION reject_one()",
        "DROP TRIGGER reject_one ON webhook_email_status",
    ],
    "sqlite": [
        "CREATE TRIGGER reject_one BEFORE INSERT ON webhook_email_status WHEN NEW.message_id = 'm7' "
        "BEGIN SELECT RAISE(ABORT, 'not this'); END",
        "DROP TRIGGER reject_one",
    ],
}


async def test_batch_with_one_failing_projection_is_projected_one_by_one(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("sendgrid", verify="none", email=True, retry={"first": "10d", "most": "10d"})
    *begin, end = REJECT_ONE[database.partition(":")[0]]
    waiting = "SELECT count(*) FROM webhook_receipts WHERE status IN ('received', 'processing')"
    async with inbox.lifespan():
        for statement in begin:
            run_sql(database, statement)
        events = [sendgrid("delivered", START + n, sg_event_id=f"e{n}", sg_message_id=f"m{n}") for n in range(20)]
        await send_payload(inbox, "sendgrid", events)
        await eventually(lambda: run_sql(database, waiting) == [(0,)])
        assert rows("SELECT event_id, status, attempts FROM webhook_receipts WHERE status <> 'processed'") == [
            ("e7", "retrying", 1)
        ]
        assert rows("SELECT count(*) FROM webhook_email_events") == [(19,)]  # the failed event left nothing
        run_sql(database, end)
        back = " RETURNING 1" if database.startswith("p") else ""
        run_sql(database, "UPDATE webhook_receipts SET next_attempt_at = received_at WHERE status = 'retrying'" + back)
        await wait_until_settled(database)
        assert (await inbox.email.verify()).differences == []
    assert rows("SELECT count(*) FROM webhook_email_status WHERE status = 'delivered'") == [(20,)]
    assert rows("SELECT outcome, count(*) FROM webhook_attempts GROUP BY outcome ORDER BY outcome") == [
        ("processed", 20),
        ("retrying", 1),
    ]


@pytest.mark.parametrize("handled", [False, True])
async def test_events_with_serial_keys_are_all_projected(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, handled: bool
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("sendgrid", verify="none", email=True, serial_by="object_id")
    seen: list[str] = []
    if handled:

        @inbox.on("sendgrid", "*")
        async def note(event: Event, tx: Any) -> None:
            seen.append(event.id)

    async with inbox.lifespan():
        events = [sendgrid("open", START + n, sg_event_id=f"e{n}", sg_message_id=f"m{n % 3}") for n in range(30)]
        await send_payload(inbox, "sendgrid", [*events, sendgrid("bounce", type="bounce", sg_message_id="m1")])
        await wait_until_settled(database)
        assert not await inbox.email.can_send(JANE)
    assert rows("SELECT status, count(*) FROM webhook_receipts GROUP BY status") == [("processed", 31)]
    assert rows("SELECT count(*) FROM webhook_email_events") == [(31,)]
    assert len(seen) == (31 if handled else 0)
