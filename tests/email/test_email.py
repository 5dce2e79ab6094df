"""Email events end to end: facts, status, suppressions and counts follow from what arrived, on both databases."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest

from oncehook import ConfigurationError, Event, Fail, Inbox, Retry
from oncehook.cli.demo_session import make_keys
from oncehook.email import Allowed, Blocked
from oncehook.providers.definition import built_in
from oncehook.providers.sign import sign
from oncehook.store.sqlite import handler as sqlite_handler
from oncehook.testing import DeliveryResponse, advance, post
from tests.support.email_payloads import JANE, postmark_bounce, sendgrid, ses_bounce, sns
from tests.support.events import Rows
from tests.support.servers import ask
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

SG_STATUS = "SELECT message_id, recipient, status, bounce FROM webhook_email_status ORDER BY message_id, recipient"
FACTS = "SELECT source, key, type, recipient FROM webhook_email_events ORDER BY source, key"
QUICK = Retry(attempts=3, first=0.01, most=0.02)
START = 1763200000


def make(make_inbox: Callable[..., Inbox], **settings: Any) -> Inbox:
    inbox = make_inbox(worker=True, **settings)
    for name in ("sendgrid", "postmark", "mailgun"):
        inbox.source(name, verify="none", email=True)
    inbox.source("ses", verify="none", topics=["*"], email=True)
    return inbox


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make(make_inbox)
    async with inbox.lifespan():
        yield inbox


async def send(inbox: Inbox, source: str, payload: Any) -> DeliveryResponse:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return await post(inbox, source, body, {"Content-Type": "application/json"})


async def settled(inbox: Inbox, database: str) -> None:
    """Until nothing waits any more."""
    waiting = "SELECT count(*) FROM webhook_receipts WHERE status IN ('received', 'processing', 'retrying')"
    await eventually(lambda: ask(database, waiting) == [(0,)])


# -- status ---------------------------------------------------------------------------------------------------------


async def test_a_bounce_is_a_fact_a_status_and_a_suppression_in_one(inbox: Inbox, database: str, rows: Rows) -> None:
    await send(
        inbox, "sendgrid", [sendgrid("delivered"), sendgrid("bounce", START + 5, reason="550 no", type="bounce")]
    )
    await settled(inbox, database)
    assert [row[2:] for row in rows(FACTS)] == [("bounced", JANE), ("delivered", JANE)]
    assert rows(SG_STATUS) == [("QxOyqPXBTJCrtqDtuwUqBA", JANE, "bounced", "hard")]
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
async def test_a_delivered_that_comes_after_a_bounce_leaves_it_bounced(
    inbox: Inbox, rows: Rows, database: str, late: int
) -> None:
    await send(inbox, "sendgrid", [sendgrid("bounce", type="bounce")])
    await settled(inbox, database)
    await send(inbox, "sendgrid", [sendgrid("delivered", late)])
    await settled(inbox, database)
    assert rows(SG_STATUS)[0][2:] == ("bounced", "hard")
    assert not await inbox.email.can_send(JANE)


async def test_after_a_soft_bounce_the_providers_clock_decides(inbox: Inbox, rows: Rows, database: str) -> None:
    soft = sendgrid("bounce", START, type="blocked")
    await send(inbox, "sendgrid", [sendgrid("delivered", START - 1), soft])
    await settled(inbox, database)
    assert rows(SG_STATUS)[0][2:] == ("bounced", "soft")
    await send(inbox, "sendgrid", [sendgrid("delivered", START + 1)])
    await settled(inbox, database)
    assert rows(SG_STATUS)[0][2:] == ("delivered", None)
    assert await inbox.email.can_send(JANE)


async def test_opens_and_clicks_are_kept_beside_the_state_and_never_hide_it(inbox: Inbox, database: str) -> None:
    opened, clicked = sendgrid("open", START + 9), sendgrid("click", START + 99, url="https://example.com")
    await send(inbox, "sendgrid", [clicked, sendgrid("open", START + 50), opened, sendgrid("delivered")])
    await settled(inbox, database)
    (status,) = await inbox.email.status("QxOyqPXBTJCrtqDtuwUqBA")
    times = [status[name][17:19] for name in ("delivered_at", "opened_at", "clicked_at", "last_at")]
    assert (status["status"], times) == ("delivered", ["40", "49", "19", "19"])


async def test_in_one_second_the_later_step_counts_whatever_its_id_is(inbox: Inbox, rows: Rows, database: str) -> None:
    events = [sendgrid("delivered", sg_event_id="a"), sendgrid("processed", sg_event_id="z")]
    await send(inbox, "sendgrid", events)
    await settled(inbox, database)
    assert rows(SG_STATUS)[0][2] == "delivered"


async def test_one_ses_message_to_five_is_five_facts_and_only_who_bounced_is_suppressed(
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
    await send(inbox, "ses", sns("Delivery", "notificationType", 1, mail, delivery=delivery))
    await send(inbox, "ses", sns("Bounce", "notificationType", 2, mail, bounce=bounced))
    await settled(inbox, database)
    assert [row[2:] for row in rows(SG_STATUS)] == [
        ("bounced", "hard") if n == 3 else ("delivered", None) for n in range(5)
    ]
    assert [await inbox.email.can_send(address) is not None for address in to] == [True] * 5
    assert [bool(await inbox.email.can_send(address)) for address in to] == [True, True, True, False, True]


async def test_the_same_ses_bounce_in_both_forms_is_one_fact(inbox: Inbox, rows: Rows, database: str) -> None:
    await send(inbox, "ses", ses_bounce("notificationType", 1))
    await send(inbox, "ses", ses_bounce("eventType", 2))
    await settled(inbox, database)
    assert rows("SELECT count(*) FROM webhook_receipts") == [(2,)]
    assert len(rows(FACTS)) == 1


async def test_an_open_of_a_mail_to_several_counts_once(inbox: Inbox, database: str) -> None:
    opened = {"timestamp": "2025-11-15T09:46:40.100Z", "userAgent": "Mozilla/5.0"}
    await send(inbox, "ses", sns("Open", open=opened))
    await settled(inbox, database)
    assert await inbox.email.counts(["type"]) == [{"type": "opened", "bounce": None, "events": 1}]


async def test_a_recipient_that_says_it_is_not_spam_is_not_suppressed(inbox: Inbox, database: str) -> None:
    for number, feedback in enumerate(("not-spam", "abuse")):
        recipients = [{"emailAddress": f"r{number}@example.com"}]
        facts = {"complainedRecipients": recipients, "feedbackId": feedback, "complaintFeedbackType": feedback}
        await send(inbox, "ses", sns("Complaint", number=number, complaint=facts))
    await settled(inbox, database)
    assert await inbox.email.can_send("r0@example.com")
    assert not await inbox.email.can_send("r1@example.com")


async def test_an_address_in_another_case_is_suppressed_by_the_event(inbox: Inbox, database: str) -> None:
    await send(inbox, "sendgrid", [sendgrid("dropped", email="MG@Example.com", reason="Bounced Address")])
    await settled(inbox, database)
    blocked = await inbox.email.can_send("mg@example.com")
    assert isinstance(blocked, Blocked) and blocked.reason == "rejected"


async def test_a_mailgun_form_with_variables_that_are_named_as_its_fields_is_read_right(
    inbox: Inbox, database: str, rows: Rows
) -> None:
    fields = [
        ("event", "bounced"), ("recipient", JANE), ("tag", "receipt"), ("tag", "shop"), ("code", "550"),
        ("order", "1042"), ("event", "of the user"), ("recipient", "of the user"), ("timestamp", "of the user"),
        ("timestamp", str(START)), ("token", "abc"), ("signature", "…"), ("Message-Id", "<m1@example.com>"),
    ]  # fmt: skip
    await post(inbox, "mailgun", urlencode(fields).encode(), {"Content-Type": "application/x-www-form-urlencoded"})
    await settled(inbox, database)
    ((type_, to, tags, metadata),) = rows("SELECT type, recipient, tags, metadata FROM webhook_email_events")
    assert (type_, to) == ("bounced", JANE)
    assert json.loads(tags) == ["receipt", "shop"]
    assert json.loads(metadata)["order"] == "1042"
    assert not await inbox.email.can_send(JANE)


async def test_what_a_provider_adds_later_is_unknown_and_no_error(inbox: Inbox, rows: Rows, database: str) -> None:
    await send(inbox, "sendgrid", [sendgrid("levitated"), sendgrid("delivered", email={"odd": 1}, sg_event_id="odd")])
    await settled(inbox, database)
    assert [row[2:] for row in rows(FACTS)] == [("unknown", JANE), ("delivered", "")]
    assert rows("SELECT DISTINCT status FROM webhook_receipts") == [("processed",)]


async def test_sendgrids_changing_ids_are_one_fact_under_a_natural_key(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("sendgrid", verify="none", email=True, id="{sg_message_id}|{event}|{timestamp}|{email}")
    async with inbox.lifespan():
        for attempt in range(3):
            await send(inbox, "sendgrid", [sendgrid("open", sg_event_id=f"changed-{attempt}")])
        await settled(inbox, database)
    assert len(rows(FACTS)) == 1
    assert [row["events"] for row in await counted(database)] == [1]


async def counted(database: str, **options: Any) -> list[dict[str, Any]]:
    inbox = Inbox(database, worker=False)
    async with inbox.lifespan():
        return await inbox.email.counts(**options)


# -- a batch --------------------------------------------------------------------------------------------------------


async def test_of_a_thousand_signed_events_the_bad_ones_fail_alone(
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
        if database.startswith("postgresql"):  # where it is the time of the transaction
            assert rows("SELECT count(DISTINCT received_at) FROM webhook_receipts") == [(1,)]
        await settled(inbox, database)
    assert rows("SELECT status, count(*) FROM webhook_receipts GROUP BY status ORDER BY status") == [
        ("failed", 3),
        ("processed", 997),
    ]
    assert rows("SELECT count(*) FROM webhook_email_events") == [(997,)]
    assert rows("SELECT status, count(*) FROM webhook_email_status GROUP BY status") == [("delivered", 997)]


# -- the user's handler ---------------------------------------------------------------------------------------------


async def test_a_failed_attempt_leaves_nothing_of_handler_and_projection(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make(make_inbox)
    seen: list[Any] = []
    marks = "$1" if database.startswith("postgresql") else "?"

    @inbox.on("postmark", "Bounce", retry=QUICK)
    async def bounced(event: Event, tx: Any) -> None:
        found = await tx.fetchval(f"SELECT reason FROM webhook_suppressions WHERE address = {marks}", event["Email"])
        seen.append((event.attempt, found, ask(database, "SELECT count(*) FROM webhook_email_events")))
        if event.attempt == 1:
            raise ConnectionError("later")

    async with inbox.lifespan():
        await send(inbox, "postmark", postmark_bounce())
        await settled(inbox, database)
    assert seen == [(1, None, [(0,)]), (2, None, [(0,)])]
    assert len(rows(FACTS)) == 1
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("processed", 2)]


async def test_a_handler_that_gives_up_leaves_nothing_folded(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make(make_inbox)

    @inbox.on("postmark", "*", retry=Retry(attempts=1))
    def bounced(event: Event) -> None:
        raise ValueError("no")

    async with inbox.lifespan():
        await send(inbox, "postmark", postmark_bounce())
        await settled(inbox, database)
    assert (rows(FACTS), rows(SG_STATUS), rows("SELECT * FROM webhook_suppressions")) == ([], [], [])


async def test_bounce_whose_handler_raises_fail_suppresses_only_after_a_replay(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox = make(make_inbox)
    fails = [True, False]

    @inbox.on("postmark", "*")
    async def bounced(event: Event) -> None:
        if fails.pop(0):
            raise Fail("no such customer")

    async with inbox.lifespan():
        await send(inbox, "postmark", postmark_bounce())
        await settled(inbox, database)
        assert await inbox.email.can_send(JANE)
        assert (await inbox.replay(status="failed")).replayed == {"failed": 1}
        await settled(inbox, database)
        assert not await inbox.email.can_send(JANE)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_without_tx_holds_no_lock_while_it_waits(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    monkeypatch.setattr(sqlite_handler, "MAX_HANDLER_SECONDS", 0.2)
    inbox = make(make_inbox)
    if is_async:

        @inbox.on("postmark", "*", retry=QUICK)
        async def slow(event: Event) -> None:
            await asyncio.sleep(0.6)  # longer than SQLite's write lock may be held

    else:

        @inbox.on("postmark", "*", retry=QUICK)
        def slow_too(event: Event) -> None:
            time.sleep(0.6)

    async with inbox.lifespan():
        await send(inbox, "postmark", postmark_bounce())
        await settled(inbox, database)
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("processed", 1)]
    assert len(rows(FACTS)) == 1


async def test_inline_it_is_folded_before_the_ack(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("postmark", verify="none", email=True, mode="inline")
    async with inbox.lifespan():
        assert (await send(inbox, "postmark", postmark_bounce())).outcome == (200, "processed")
        assert len(rows(FACTS)) == 1
        assert not await inbox.email.can_send(JANE)


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("handled", [False, True])
async def test_on_the_users_engine_it_is_folded_in_their_session(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, kind: str, handled: bool
) -> None:
    from sqlalchemy import text

    from tests.integrations.sqlalchemy.test_transaction import dispose, make_engine

    engine = make_engine(database, kind)
    inbox = make(make_inbox, engine=engine)
    seen: list[Any] = []
    statement = text("SELECT count(*) FROM webhook_suppressions")
    if handled and kind == "async":

        @inbox.on("postmark", "*", retry=QUICK)
        async def bounced(event: Event, tx: Any) -> None:
            seen.append((await tx.execute(statement)).scalar_one())
            if event.attempt == 1:
                raise ConnectionError("later")

    elif handled:

        @inbox.on("postmark", "*", retry=QUICK)
        def bounced_too(event: Event, tx: Any) -> None:
            seen.append(tx.execute(statement).scalar_one())
            if event.attempt == 1:
                raise ConnectionError("later")

    async with inbox.lifespan():
        await send(inbox, "postmark", postmark_bounce())
        await settled(inbox, database)
        assert not await inbox.email.can_send(JANE)
    await dispose(engine)
    assert seen == ([0, 0] if handled else []), "the projection runs after the handler"
    assert len(rows(FACTS)) == 1
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("processed", 2 if handled else 1)]


def test_a_source_of_a_provider_that_sends_no_email_events_cannot_have_them() -> None:
    with pytest.raises(ConfigurationError, match=r"sources\.stripe\.email: stripe has no email events"):
        Inbox("sqlite:///x.db").source("stripe", secrets=["whsec_x"], email=True)


# -- beside effects, and in tests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("takes_tx", [False, True])
async def test_an_event_whose_work_was_done_for_another_is_folded_all_the_same(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, takes_tx: bool
) -> None:
    inbox = make(make_inbox)
    calls = []

    async def note(event: Event) -> None:
        calls.append(event.id)

    async def note_with(event: Event, tx: Any) -> None:
        calls.append(event.id)

    inbox.on("sendgrid", "*", once_per="sg_message_id")(note_with if takes_tx else note)
    async with inbox.lifespan():
        await send(inbox, "sendgrid", [sendgrid("delivered", sg_event_id="one")])
        await settled(inbox, database)
        await send(inbox, "sendgrid", [sendgrid("bounce", START + 5, type="bounce", sg_event_id="two")])
        await settled(inbox, database)
        assert not await inbox.email.can_send(JANE)
    assert len(calls) == 1
    assert len(rows(FACTS)) == 2
    assert [row[2] for row in rows(SG_STATUS)] == ["bounced"]


@pytest.mark.parametrize("takes_tx", [False, True])
async def test_where_another_event_was_quicker_only_the_handlers_work_goes(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, takes_tx: bool
) -> None:
    """Both are in their handler when the first of them is marked: the other finds it out at its own mark."""
    inbox = make(make_inbox, concurrency=4)
    inside: list[str] = []
    both = asyncio.Event()

    async def meet(event: Event) -> None:
        inside.append(event.id)
        if len(inside) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), 30)

    async def meet_with(event: Event, tx: Any) -> None:
        inside.append(event.id)

    inbox.on("sendgrid", "*", once_per="sg_message_id")(meet_with if takes_tx else meet)
    if takes_tx:  # one at a time holds a transaction on SQLite, so both look before either is folded
        fold, looked = inbox._runtime.email_projection.project, asyncio.Event()
        waiting: list[Any] = []

        async def fold_together(events: Any, transaction: Any) -> None:
            waiting.append(events)
            if len(waiting) == 2:
                looked.set()
            await asyncio.wait_for(looked.wait(), 30)
            await fold(events, transaction)

        inbox._runtime.email_projection.project = fold_together  # type: ignore[method-assign]
    async with inbox.lifespan():
        events = [
            sendgrid("delivered", sg_event_id="one"), sendgrid("bounce", START + 5, type="bounce", sg_event_id="two"),
        ]  # fmt: skip
        await send(inbox, "sendgrid", events)
        await settled(inbox, database)
        assert not await inbox.email.can_send(JANE)
        assert (await inbox.email.verify()).differences == []
    assert len(inside) == 2
    assert len(rows(FACTS)) == 2
    assert [row[2] for row in rows(SG_STATUS)] == ["bounced"]
    assert rows("SELECT reason FROM webhook_noops") == [("effect",)]


async def test_when_time_is_moved_in_a_test_what_follows_from_the_facts_moves_along(
    inbox: Inbox, database: str, rows: Rows
) -> None:
    await send(inbox, "sendgrid", [sendgrid("delivered"), sendgrid("bounce", START + 5, type="bounce")])
    await settled(inbox, database)
    await advance(inbox, "2h")
    assert (await inbox.email.verify()).differences == []
    blocked = await inbox.email.can_send(JANE)
    assert isinstance(blocked, Blocked) and blocked.since == datetime.fromtimestamp(START + 5 - 7200, UTC)
