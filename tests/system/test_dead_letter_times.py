"""Every dead letter has a time and a reason in SQL, JSON, the CLI, the dashboard and the log.

An event becomes a dead letter in its handler, after a crash, at the receiver, or when its provider stops retrying.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox
from oncehook.model.retry import Retry
from oncehook.operations.replay import replay
from oncehook.store.rows import Selection
from oncehook.testing import deliver, drain, post
from oncehook.worker.rescue import abandon, rescue
from tests.support.command_line import Run
from tests.support.dashboard import dashboard_of
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.servers import run_sql
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

DEAD = "SELECT count(*) FROM webhook_receipts WHERE status = 'failed'"
DEAD_WITH_TIME = "SELECT count(*) FROM webhook_dlq WHERE failed_at >= received_at"

Lines = Callable[[], list[dict[str, Any]]]


@asynccontextmanager
async def start_inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.source("inline", provider="stripe", secrets=["whsec_test"], mode="inline")
    async with inbox.lifespan():
        inbox._runtime.start_processor()  # for inline sources; there is no worker
        yield inbox


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    async with start_inbox(make_inbox) as inbox:
        yield inbox


async def fail_in_handler(inbox: Inbox) -> None:
    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        raise Fail("the invoice is unknown")

    await deliver(inbox, "stripe", stripe_body("evt_1"))
    await drain(inbox)


async def fail_by_a_crash(inbox: Inbox) -> None:
    @inbox.on("stripe", "invoice.paid", retry=Retry(attempts=1))
    async def paid(event: Event) -> None: ...

    await deliver(inbox, "stripe", stripe_body("evt_1"))
    assert await inbox._runtime.store.leases.take(1, 0, "gone")

    async def is_rescued() -> object:
        return await rescue(inbox._runtime.store, inbox._runtime.handlers, inbox._runtime.sources)

    await eventually(is_rescued, "a lease of 0 seconds expires at the next tick of the database's clock")


async def fail_at_the_receiver(inbox: Inbox) -> None:
    await deliver(inbox, "stripe", json.dumps({"id": {"new": "shape"}, "type": "invoice.paid"}).encode())


async def fail_abandoned(inbox: Inbox) -> None:
    @inbox.on("inline", "invoice.paid")
    async def paid(event: Event) -> None:
        raise ValueError("not now")

    body = stripe_body("evt_1")
    assert (await post(inbox, "inline", body, stripe_headers(body))).status == 500
    run_sql(inbox._runtime.settings.database, "UPDATE webhook_receipts SET next_attempt_at = received_at")
    await abandon(inbox._runtime.store)


FAILURES = [fail_in_handler, fail_by_a_crash, fail_at_the_receiver, fail_abandoned]


@pytest.mark.parametrize("fail", FAILURES, ids=lambda fail: fail.__name__)
async def test_every_dead_letter_has_failed_at_until_it_is_replayed(
    inbox: Inbox, rows: Rows, fail: Callable[[Inbox], Any]
) -> None:
    await fail(inbox)
    assert rows(DEAD) == rows(DEAD_WITH_TIME) == [(1,)]
    receipt, _ = (await inbox._runtime.store.operations.select(Selection(), after=0, limit=9))[0]
    event = receipt.as_json()
    assert event["failed_at"] >= event["received_at"] and event["last_error"]
    (group,) = await inbox._runtime.store.stats.dead_letters(10)
    assert (group.first_failed_at, group.last_failed_at) == (event["failed_at"], event["failed_at"])
    rows("UPDATE webhook_receipts SET type = 'invoice.paid' RETURNING id")
    assert (await replay(inbox._runtime.store, Selection())).count == 1
    assert rows("SELECT count(*) FROM webhook_receipts WHERE failed_at IS NOT NULL") == [(0,)]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE replayed_at >= received_at") == [(1,)]


async def test_abandoned_inline_event_has_a_reason_and_a_complete_log_line(
    inbox: Inbox, rows: Rows, lines: Lines
) -> None:
    await fail_abandoned(inbox)
    (line,) = [line for line in lines() if line["event"] == "abandoned"]
    reason = "the provider stopped retrying; the last error was: ValueError: not now"
    assert rows("SELECT last_error FROM webhook_dlq") == [(reason,)]
    expected = {
        "event": "abandoned", "level": "error", "source": "inline", "provider": "stripe", "event_id": "evt_1",
        "type": "invoice.paid", "object_id": "in_1", "receipt": 1, "status": "failed", "correlation_id": "1",
        "attempt": 1, "error": reason,
    }  # fmt: skip
    assert {name: line.get(name) for name in expected} == expected


async def test_every_log_line_of_an_event_names_its_provider(inbox: Inbox, lines: Lines) -> None:
    await fail_in_handler(inbox)
    await fail_abandoned(inbox)
    event_lines = [line for line in lines() if "event_id" in line]
    assert {line["event"] for line in event_lines} == {"accepted", "dead_letter", "retrying", "abandoned"}
    assert {line["provider"] for line in event_lines} == {"stripe"}


async def test_dashboard_and_api_show_the_time_of_a_dead_letter(inbox: Inbox) -> None:
    await fail_abandoned(inbox)
    async with dashboard_of(inbox) as site, site.signed_in() as browser:
        page = await browser.get("/events/1")
        assert "Dead letter</strong>" in page.text and "<dt>Failed</dt>" in page.text
        assert "First failed" in (await browser.get("/dead")).text
        async with site.program() as program:
            assert (await program.get("/api/events/1")).json()["failed_at"]
            assert all(group["last_failed_at"] for group in (await program.get("/api/dead")).json()["groups"])


async def fill(make_inbox: Callable[..., Inbox], *failures: Callable[[Inbox], Any]) -> None:
    async with start_inbox(make_inbox) as inbox:
        for fail in failures:
            await fail(inbox)


def test_commands_show_the_time_and_the_reason_of_a_dead_letter(
    make_inbox: Callable[..., Inbox], run: Run, in_folder: Path, database: str
) -> None:
    (in_folder / "oncehook.toml").write_text(f'database = "{database}"\n')
    asyncio.run(fill(make_inbox, fail_abandoned, fail_at_the_receiver))
    for receipt, why in ((1, "the provider stopped retrying"), (2, "id")):
        shown = run("show", str(receipt), "--json").lines[0]
        assert shown["failed_at"] and why in shown["last_error"]
        text = run("show", str(receipt)).out
        assert re.search(rf"^{re.escape(shown['failed_at'])}  dead letter: .*{why}", text, re.MULTILINE), text
        assert shown["failed_at"][11:16] in run("dead").out, "the list must show the hour and minute"


def test_show_command_shows_a_failed_attempt_once(
    make_inbox: Callable[..., Inbox], run: Run, in_folder: Path, database: str
) -> None:
    (in_folder / "oncehook.toml").write_text(f'database = "{database}"\n')
    asyncio.run(fill(make_inbox, fail_in_handler))
    text = run("show", "1").out
    assert "attempt 1: failed" in text and "dead letter:" not in text
