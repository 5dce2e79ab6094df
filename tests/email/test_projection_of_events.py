"""Facts, status and suppressions follow from delivered events, on both databases."""

import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest

from oncehook import Inbox
from oncehook.cli.demo_session import make_keys
from oncehook.email import Allowed, Blocked
from oncehook.providers.definition import built_in
from oncehook.providers.sign import sign
from oncehook.testing import advance, post
from tests.support.email_inbox import FACTS, START, STATUSES, make_email_inbox, send_payload, wait_until_settled
from tests.support.email_payloads import JANE, sendgrid, ses_bounce, sns
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_email_inbox(make_inbox)
    async with inbox.lifespan():
        yield inbox


async def test_bounce_is_recorded_as_fact_status_and_suppression(inbox: Inbox, database: str, rows: Rows) -> None:
    await send_payload(
        inbox, "sendgrid", [sendgrid("delivered"), sendgrid("bounce", START + 5, reason="550 no", type="bounce")]
    )
    await wait_until_settled(database)
    assert [row[2:] for row in rows(FACTS)] == [("bounced", JANE), ("delivered", JANE)]
    assert rows(STATUSES) == [("QxOyqPXBTJCrtqDtuwUqBA", JANE, "bounced", "hard")]
    (status,) = await inbox.email.status("<QxOyqPXBTJCrtqDtuwUqBA>")
    assert (status["status"], status["reason"], status["delivered_at"]) == (
        "bounced",
        "550 no",
        "2025-11-15T09:46:40.000000Z",
    )
    assert await inbox.email.can_send("Someone@example.com") == Allowed()
    blocked = await inbox.email.can_send("Jane <jane@EXAMPLE.com>")
    assert isinstance(blocked, Blocked) and not blocked
    assert (blocked.event, blocked.reason) == (f"bounce-{START + 5}", "hard_bounce")
    assert blocked.since == datetime.fromtimestamp(START + 5, UTC)
    assert rows("SELECT outcome, count(*) FROM webhook_receipts GROUP BY outcome") == [("processed", 2)]


@pytest.mark.parametrize("late", [START - 60, START, START + 60])
async def test_delivered_event_does_not_hide_a_hard_bounce(inbox: Inbox, rows: Rows, database: str, late: int) -> None:
    await send_payload(inbox, "sendgrid", [sendgrid("bounce", type="bounce")])
    await wait_until_settled(database)
    await send_payload(inbox, "sendgrid", [sendgrid("delivered", late)])
    await wait_until_settled(database)
    assert rows(STATUSES)[0][2:] == ("bounced", "hard")
    assert not await inbox.email.can_send(JANE)


async def test_clock_of_the_provider_decides_after_a_soft_bounce(inbox: Inbox, rows: Rows, database: str) -> None:
    soft = sendgrid("bounce", START, type="blocked")
    await send_payload(inbox, "sendgrid", [sendgrid("delivered", START - 1), soft])
    await wait_until_settled(database)
    assert rows(STATUSES)[0][2:] == ("bounced", "soft")
    await send_payload(inbox, "sendgrid", [sendgrid("delivered", START + 1)])
    await wait_until_settled(database)
    assert rows(STATUSES)[0][2:] == ("delivered", None)
    assert await inbox.email.can_send(JANE)


async def test_opens_and_clicks_never_change_the_status(inbox: Inbox, database: str) -> None:
    opened, clicked = sendgrid("open", START + 9), sendgrid("click", START + 99, url="https://example.com")
    await send_payload(inbox, "sendgrid", [clicked, sendgrid("open", START + 50), opened, sendgrid("delivered")])
    await wait_until_settled(database)
    (status,) = await inbox.email.status("QxOyqPXBTJCrtqDtuwUqBA")
    times = [status[name][17:19] for name in ("delivered_at", "opened_at", "clicked_at", "last_at")]
    assert (status["status"], times) == ("delivered", ["40", "49", "19", "19"])


async def test_later_event_that_changes_nothing_else_is_the_last_one(inbox: Inbox, rows: Rows, database: str) -> None:
    """Retention counts from the last event of a message."""
    for number, seconds in enumerate((9, 30)):
        await send_payload(inbox, "sendgrid", [sendgrid("open", START + seconds, sg_event_id=f"open-{number}")])
        await wait_until_settled(database)
    (status,) = await inbox.email.status("QxOyqPXBTJCrtqDtuwUqBA")
    assert [status[name][17:19] for name in ("opened_at", "last_at")] == ["49", "10"]
    assert (await inbox.email.verify()).differences == []


async def test_higher_rank_counts_for_events_of_the_same_second(inbox: Inbox, rows: Rows, database: str) -> None:
    events = [sendgrid("delivered", sg_event_id="a"), sendgrid("processed", sg_event_id="z")]
    await send_payload(inbox, "sendgrid", events)
    await wait_until_settled(database)
    assert rows(STATUSES)[0][2] == "delivered"


async def test_ses_message_to_five_recipients_suppresses_only_the_one_that_bounced(
    inbox: Inbox, rows: Rows, database: str
) -> None:
    to = [f"r{n}@example.com" for n in range(5)]
    mail = {"messageId": "m-5", "timestamp": "2025-11-15T09:46:39.5Z", "destination": to}
    delivery = {"timestamp": "2025-11-15T09:46:40Z", "recipients": to}
    bounced = {
        "bounceType": "Permanent",
        "bouncedRecipients": [{"emailAddress": to[3]}],
        "timestamp": "2025-11-15T09:46:41Z",
    }
    await send_payload(inbox, "ses", sns("Delivery", "notificationType", 1, mail, delivery=delivery))
    await send_payload(inbox, "ses", sns("Bounce", "notificationType", 2, mail, bounce=bounced))
    await wait_until_settled(database)
    assert [row[2:] for row in rows(STATUSES)] == [
        ("bounced", "hard") if n == 3 else ("delivered", None) for n in range(5)
    ]
    assert [await inbox.email.can_send(address) is not None for address in to] == [True] * 5
    assert [bool(await inbox.email.can_send(address)) for address in to] == [True, True, True, False, True]


async def test_ses_bounce_in_both_forms_is_recorded_once(inbox: Inbox, rows: Rows, database: str) -> None:
    await send_payload(inbox, "ses", ses_bounce("notificationType", 1))
    await send_payload(inbox, "ses", ses_bounce("eventType", 2))
    await wait_until_settled(database)
    assert rows("SELECT count(*) FROM webhook_receipts") == [(2,)]
    assert len(rows(FACTS)) == 1


async def test_open_of_a_mail_to_several_recipients_counts_once(inbox: Inbox, database: str) -> None:
    opened = {"timestamp": "2025-11-15T09:46:40.100Z", "userAgent": "Mozilla/5.0"}
    await send_payload(inbox, "ses", sns("Open", open=opened))
    await wait_until_settled(database)
    assert await inbox.email.counts(["type"]) == [{"type": "opened", "bounce": None, "events": 1}]


async def test_not_spam_feedback_does_not_suppress_the_recipient(inbox: Inbox, database: str) -> None:
    for number, feedback in enumerate(("not-spam", "abuse")):
        recipients = [{"emailAddress": f"r{number}@example.com"}]
        facts = {"complainedRecipients": recipients, "feedbackId": feedback, "complaintFeedbackType": feedback}
        await send_payload(inbox, "ses", sns("Complaint", number=number, complaint=facts))
    await wait_until_settled(database)
    assert await inbox.email.can_send("r0@example.com")
    assert not await inbox.email.can_send("r1@example.com")


async def test_event_suppresses_the_address_in_every_case(inbox: Inbox, database: str) -> None:
    await send_payload(inbox, "sendgrid", [sendgrid("dropped", email="MG@Example.com", reason="Bounced Address")])
    await wait_until_settled(database)
    blocked = await inbox.email.can_send("mg@example.com")
    assert isinstance(blocked, Blocked) and blocked.reason == "rejected"


async def test_mailgun_form_with_variables_named_like_its_fields_is_read_correctly(
    inbox: Inbox, database: str, rows: Rows
) -> None:
    fields = [
        ("event", "bounced"), ("recipient", JANE), ("tag", "receipt"), ("tag", "shop"), ("code", "550"),
        ("order", "1042"), ("event", "a variable"), ("recipient", "a variable"), ("timestamp", "a variable"),
        ("timestamp", str(START)), ("token", "abc"), ("signature", "…"), ("Message-Id", "<m1@example.com>"),
    ]  # fmt: skip
    await post(inbox, "mailgun", urlencode(fields).encode(), {"Content-Type": "application/x-www-form-urlencoded"})
    await wait_until_settled(database)
    ((type_, to, tags, metadata),) = rows("SELECT type, recipient, tags, metadata FROM webhook_email_events")
    assert (type_, to) == ("bounced", JANE)
    assert json.loads(tags) == ["receipt", "shop"]
    assert json.loads(metadata)["order"] == "1042"
    assert not await inbox.email.can_send(JANE)


async def test_unknown_event_names_and_odd_addresses_are_recorded_without_an_error(
    inbox: Inbox, rows: Rows, database: str
) -> None:
    await send_payload(
        inbox, "sendgrid", [sendgrid("levitated"), sendgrid("delivered", email={"odd": 1}, sg_event_id="odd")]
    )
    await wait_until_settled(database)
    assert [row[2:] for row in rows(FACTS)] == [("unknown", JANE), ("delivered", "")]
    assert rows("SELECT DISTINCT status FROM webhook_receipts") == [("processed",)]


async def test_natural_key_makes_changing_sendgrid_ids_one_fact(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("sendgrid", verify="none", email=True, id="{sg_message_id}|{event}|{timestamp}|{email}")
    async with inbox.lifespan():
        for attempt in range(3):
            await send_payload(inbox, "sendgrid", [sendgrid("open", sg_event_id=f"changed-{attempt}")])
        await wait_until_settled(database)
    assert len(rows(FACTS)) == 1
    assert [row["events"] for row in await counted(database)] == [1]


async def counted(database: str, **options: Any) -> list[dict[str, Any]]:
    inbox = Inbox(database, worker=False)
    async with inbox.lifespan():
        return await inbox.email.counts(**options)


async def test_only_the_invalid_events_of_a_large_batch_fail(
    make_inbox: Callable[..., Inbox], rows: Rows, database: str
) -> None:
    private, public = make_keys()["sendgrid"]
    inbox = make_inbox(worker=True)
    inbox.source("sendgrid", secrets=[public], email=True)
    events = [
        json.dumps(sendgrid("delivered", START + n, sg_event_id=f"e{n}", sg_message_id=f"m{n}")) for n in range(997)
    ]
    bad = [
        '{"event": "delivered", "email": "x@example.com"}',
        '{"sg_event_id": "no-type"}',
        '{"sg_event_id": "e", "event": 1.5}',
    ]
    body = ("[" + ",\r\n".join([*events[:500], *bad, *events[500:]]) + "]").encode()
    headers, _ = sign(
        built_in("sendgrid"), body, private, headers={"Content-Type": "application/json"}, now=time.time()
    )
    async with inbox.lifespan():
        answer = await post(inbox, "sendgrid", body, headers)
        assert answer.json == {"status": "accepted", "accepted": 997, "duplicate": 0, "ignored": 0, "failed": 3}
        if database.startswith("postgresql"):  # there it is the time of the transaction
            assert rows("SELECT count(DISTINCT received_at) FROM webhook_receipts") == [(1,)]
        await wait_until_settled(database)
    assert rows("SELECT status, count(*) FROM webhook_receipts GROUP BY status ORDER BY status") == [
        ("failed", 3),
        ("processed", 997),
    ]
    assert rows("SELECT count(*) FROM webhook_email_events") == [(997,)]
    assert rows("SELECT status, count(*) FROM webhook_email_status GROUP BY status") == [("delivered", 997)]


async def test_advance_in_tests_moves_the_times_of_the_projection(inbox: Inbox, database: str, rows: Rows) -> None:
    await send_payload(inbox, "sendgrid", [sendgrid("delivered"), sendgrid("bounce", START + 5, type="bounce")])
    await wait_until_settled(database)
    await advance(inbox, "2h")
    assert (await inbox.email.verify()).differences == []
    blocked = await inbox.email.can_send(JANE)
    assert isinstance(blocked, Blocked) and blocked.since == datetime.fromtimestamp(START + 5 - 7200, UTC)
