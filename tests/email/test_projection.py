"""The projection runs after the handler, in its transaction, whatever the handler takes."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncehook import ConfigurationError, Event, Fail, Inbox, Retry, SyncEvent
from oncehook.store.sqlite import handler as sqlite_handler
from tests.support.email_inbox import FACTS, START, STATUSES, make_email_inbox, send_payload, wait_until_settled
from tests.support.email_payloads import JANE, postmark_bounce, sendgrid
from tests.support.events import Rows
from tests.support.servers import run_sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


SUPPRESSED = "SELECT count(*) FROM webhook_suppressions"


@pytest.mark.parametrize("kind", ["async", "async with tx", "plain", "plain with tx"])
async def test_projection_runs_after_every_kind_of_handler(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, kind: str
) -> None:
    inbox = make_email_inbox(make_inbox)
    before: list[Any] = []

    async def handle(event: Event) -> None:
        before.append(rows(SUPPRESSED))

    async def handle_with(event: Event, tx: Any) -> None:
        before.append([(await tx.fetchval(SUPPRESSED),)])

    def handle_plain(event: SyncEvent) -> None:
        before.append(rows(SUPPRESSED))

    def handle_plain_with(event: SyncEvent, tx: Any) -> None:
        before.append([(tx.fetchval(SUPPRESSED),)])

    handlers: dict[str, Any] = {"async": handle, "async with tx": handle_with, "plain": handle_plain}
    inbox.on("postmark", "*")(handlers.get(kind, handle_plain_with))
    async with inbox.lifespan():
        await send_payload(inbox, "postmark", postmark_bounce())
        await wait_until_settled(database)
        assert not await inbox.email.can_send(JANE)
    assert before == [[(0,)]]


WITHOUT_EMAIL = """
import asyncio, sys

class Removed:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] in (["oncehook", "email"], ["oncehook", "alerts"]):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Removed())
from oncehook import Inbox
from oncehook.testing import deliver, drain

inbox = Inbox("sqlite:///inbox.db", worker=False)
inbox.source("stripe", secrets=["whsec_test"])
seen = []
inbox.on("stripe", "*")(lambda event: seen.append(event.id))

async def main():
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", type="invoice.paid")).status == 202
        await drain(inbox)

asyncio.run(main())
assert len(seen) == 1
from click.testing import CliRunner
from oncehook.cli import oncehook
for command in (["events"], ["prune"], ["stats"], ["forget", "--object", "nothing"]):
    done = CliRunner().invoke(oncehook, command, env={"ONCEHOOK_DATABASE": "sqlite:///inbox.db"})
    assert done.exit_code == (1 if command[0] == "forget" else 0), (command, done.output, done.exception)
"""


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_inbox_works_without_the_email_and_alerts_packages(tmp_path: Path, database: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EMAIL], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


QUICK = Retry(attempts=3, first=0.01, most=0.02)


async def test_failed_attempt_rolls_back_handler_and_projection(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_email_inbox(make_inbox)
    seen: list[Any] = []
    placeholder = "$1" if database.startswith("postgresql") else "?"

    @inbox.on("postmark", "Bounce", retry=QUICK)
    async def bounced(event: Event, tx: Any) -> None:
        reason = await tx.fetchval(
            f"SELECT reason FROM webhook_suppressions WHERE address = {placeholder}", event["Email"]
        )
        seen.append((event.attempt, reason, run_sql(database, "SELECT count(*) FROM webhook_email_events")))
        if event.attempt == 1:
            raise ConnectionError("later")

    async with inbox.lifespan():
        await send_payload(inbox, "postmark", postmark_bounce())
        await wait_until_settled(database)
    assert seen == [(1, None, [(0,)]), (2, None, [(0,)])]
    assert len(rows(FACTS)) == 1
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("processed", 2)]


async def test_event_whose_handler_failed_for_good_is_not_projected(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_email_inbox(make_inbox)

    @inbox.on("postmark", "*", retry=Retry(attempts=1))
    def bounced(event: SyncEvent) -> None:
        raise ValueError("no")

    async with inbox.lifespan():
        await send_payload(inbox, "postmark", postmark_bounce())
        await wait_until_settled(database)
    assert (rows(FACTS), rows(STATUSES), rows("SELECT * FROM webhook_suppressions")) == ([], [], [])


async def test_bounce_whose_handler_raises_fail_suppresses_only_after_a_replay(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox = make_email_inbox(make_inbox)
    fails = [True, False]

    @inbox.on("postmark", "*")
    async def bounced(event: Event) -> None:
        if fails.pop(0):
            raise Fail("no such customer")

    async with inbox.lifespan():
        await send_payload(inbox, "postmark", postmark_bounce())
        await wait_until_settled(database)
        assert await inbox.email.can_send(JANE)
        assert (await inbox.replay(status="failed")).replayed == {"failed": 1}
        await wait_until_settled(database)
        assert not await inbox.email.can_send(JANE)


@pytest.mark.parametrize("is_async", [True, False])
async def test_handler_without_tx_holds_no_database_lock(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """The handler runs for longer than SQLite's write lock may be held, and another delivery is recorded."""
    monkeypatch.setattr(sqlite_handler, "MAX_HANDLER_SECONDS", 0.1)
    inbox = make_email_inbox(make_inbox)
    inside, let_go = threading.Event(), threading.Event()

    async def wait_in_loop(event: Event) -> None:
        inside.set()
        await eventually(let_go.is_set)

    def wait_in_thread(event: SyncEvent) -> None:
        inside.set()
        let_go.wait(30)

    if is_async:
        inbox.on("postmark", "*", retry=QUICK)(wait_in_loop)
    else:
        inbox.on("postmark", "*", retry=QUICK)(wait_in_thread)
    async with inbox.lifespan():
        await send_payload(inbox, "postmark", postmark_bounce())
        await eventually(inside.is_set, "the handler runs")
        entered = time.monotonic()
        assert (await send_payload(inbox, "sendgrid", [sendgrid("delivered")])).status == 202
        await eventually(lambda: time.monotonic() > entered + 0.2, "the lock's limit has passed")
        let_go.set()
        await wait_until_settled(database)
    assert set(rows("SELECT status, attempts FROM webhook_receipts")) == {("processed", 1)}
    assert len(rows(FACTS)) == 2


async def test_inline_event_is_projected_before_the_ack(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("postmark", verify="none", email=True, mode="inline")
    async with inbox.lifespan():
        assert (await send_payload(inbox, "postmark", postmark_bounce())).outcome == (200, "processed")
        assert len(rows(FACTS)) == 1
        assert not await inbox.email.can_send(JANE)


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("handled", [False, True])
async def test_event_is_projected_in_the_session_of_the_users_engine(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, kind: str, handled: bool
) -> None:
    from sqlalchemy import text

    from tests.support.engines import dispose, make_engine

    engine = make_engine(database, kind)
    inbox = make_email_inbox(make_inbox, engine=engine)
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
        def bounced_too(event: SyncEvent, tx: Any) -> None:
            seen.append(tx.execute(statement).scalar_one())
            if event.attempt == 1:
                raise ConnectionError("later")

    async with inbox.lifespan():
        await send_payload(inbox, "postmark", postmark_bounce())
        await wait_until_settled(database)
        assert not await inbox.email.can_send(JANE)
    await dispose(engine)
    assert seen == ([0, 0] if handled else []), "the projection runs after the handler"
    assert len(rows(FACTS)) == 1
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("processed", 2 if handled else 1)]


def test_provider_without_email_events_cannot_be_an_email_source() -> None:
    with pytest.raises(ConfigurationError, match=r"sources\.stripe\.email: stripe has no email events"):
        Inbox("sqlite:///x.db").source("stripe", secrets=["whsec_x"], email=True)


@pytest.mark.parametrize("takes_tx", [False, True])
async def test_event_that_once_per_skips_is_still_projected(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, takes_tx: bool
) -> None:
    inbox = make_email_inbox(make_inbox)
    calls = []

    async def note(event: Event) -> None:
        calls.append(event.id)

    async def note_with(event: Event, tx: Any) -> None:
        calls.append(event.id)

    inbox.on("sendgrid", "*", once_per="sg_message_id")(note_with if takes_tx else note)
    async with inbox.lifespan():
        await send_payload(inbox, "sendgrid", [sendgrid("delivered", sg_event_id="one")])
        await wait_until_settled(database)
        await send_payload(inbox, "sendgrid", [sendgrid("bounce", START + 5, type="bounce", sg_event_id="two")])
        await wait_until_settled(database)
        assert not await inbox.email.can_send(JANE)
    assert len(calls) == 1
    assert len(rows(FACTS)) == 2
    assert [row[2] for row in rows(STATUSES)] == ["bounced"]


@pytest.mark.parametrize("takes_tx", [False, True])
async def test_losing_event_of_a_once_per_race_rolls_back_its_handler_and_is_projected(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, takes_tx: bool
) -> None:
    """Both handlers run when the first event settles. The second finds out when it settles."""
    inbox = make_email_inbox(make_inbox, concurrency=4)
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
    if takes_tx:  # SQLite runs one transaction at a time, so both handlers end before either event is projected
        projection = inbox._runtime.email_projection
        assert projection is not None
        project, both_wait = projection.project, asyncio.Event()
        waiting: list[Any] = []

        async def project_together(events: Any, transaction: Any) -> None:
            waiting.append(events)
            if len(waiting) == 2:
                both_wait.set()
            await asyncio.wait_for(both_wait.wait(), 30)
            await project(events, transaction)

        projection.project = project_together  # type: ignore[method-assign]
    async with inbox.lifespan():
        events = [
            sendgrid("delivered", sg_event_id="one"), sendgrid("bounce", START + 5, type="bounce", sg_event_id="two"),
        ]  # fmt: skip
        await send_payload(inbox, "sendgrid", events)
        await wait_until_settled(database)
        assert not await inbox.email.can_send(JANE)
        assert (await inbox.email.verify()).differences == []
    assert len(inside) == 2
    assert len(rows(FACTS)) == 2
    assert [row[2] for row in rows(STATUSES)] == ["bounced"]
    assert rows("SELECT reason FROM webhook_noops") == [("effect",)]
