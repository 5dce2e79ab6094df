"""Paused sources: the worker, inline sources, forwards and the commands."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncehook import Event, Inbox
from oncehook.model.receipt import Filter
from oncehook.testing import deliver, drain
from tests.support.command_line import Run
from tests.support.events import Rows, stripe_body
from tests.support.serve import write_config
from tests.support.stores import open_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio
LEDGER = "SELECT source, event_id, status, attempts FROM webhook_receipts ORDER BY id"


# -- the store ------------------------------------------------------------------------------------------------------


# -- who works ------------------------------------------------------------------------------------------------------


async def test_pause_lets_running_handlers_finish_and_releases_the_other_receipts(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(worker=True, concurrency=1)
    inbox.source("stripe", secrets=["whsec_test"])
    started, may_end = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    @inbox.on("stripe", "*")
    async def wait(event: Event) -> None:
        started.set()
        await may_end.wait()
        seen.append(event.id)

    async with inbox.lifespan(), open_store(database) as person:
        for n in range(4):
            assert (await deliver(inbox, "stripe", stripe_body(f"evt_{n}"))).status == 202
        await started.wait()
        await eventually(lambda: len(rows("SELECT 1 FROM webhook_receipts WHERE status = 'processing'")) > 1)
        await person.pauses.pause("stripe", "jane")
        await eventually(lambda: len(rows("SELECT 1 FROM webhook_receipts WHERE status = 'processing'")) == 1)
        may_end.set()
        await eventually(lambda: ("processed",) in rows("SELECT status FROM webhook_receipts"))
        assert (await deliver(inbox, "stripe", stripe_body("evt_4"))).status == 202
        assert len(seen) == 1
        assert sorted(row[2:] for row in rows(LEDGER)) == [("processed", 1), *[("received", 0)] * 4]
        await person.pauses.resume("stripe", "jane")
        await eventually(lambda: len(seen) == 5)


async def test_paused_inline_source_answers_503_and_stores_nothing(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"], mode="inline")
    inbox.on("stripe", "*")(lambda event: None)
    async with inbox.lifespan():
        await inbox._runtime.store.pauses.pause("stripe", "me")
        answer = await deliver(inbox, "stripe", stripe_body("evt_1"))
        assert answer.status == 503 and answer.headers["retry-after"] == "60"
        message = answer.json["error"]["message"]
        assert message == "The source is paused, and the event is not recorded. Deliver it again later."
        assert rows(LEDGER) == []
        await inbox._runtime.store.pauses.resume("stripe", "me")

        async def is_accepted() -> bool:
            return (await deliver(inbox, "stripe", stripe_body("evt_1"))).status != 503

        await eventually(is_accepted, "the resumed source accepts the delivery", within=20)
    assert rows(LEDGER) == [("stripe", "evt_1", "processed", 1)]


async def test_paused_forward_waits_and_drain_returns(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], forward="http://127.0.0.1:1/unreachable")
    inbox.source("github", secrets=["github-secret"])
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await inbox._runtime.store.pauses.pause("stripe", "me")
        assert list(await drain(inbox)) == []
        assert await inbox._runtime.store.leases.next_due() is None
        (receipt,) = await inbox._runtime.store.receipts.find(Filter(), limit=5)
        assert (receipt.status, receipt.attempts) == ("received", 0)


# -- the command line -----------------------------------------------------------------------------------------------


def test_pause_and_resume_commands_and_their_effect_on_stats(
    run: Run, in_folder: Path, database: str, rows: Rows
) -> None:
    write_config(in_folder, database)
    assert run("migrate").code == 0
    assert run("pause", "unknown").code == 2
    paused = run("pause", "stripe", "--actor", "jane")
    assert paused.code == 0 and "stripe is paused" in paused.out
    again = run("pause", "stripe", "--json")
    assert again.code == 1 and json.loads(again.out)["changed"] is False
    assert "oncehook resume stripe" in run("stats").out
    rows_of_stats = [json.loads(line) for line in run("stats", "--json").out.splitlines()]
    assert [row["source"] for row in rows_of_stats if row["paused_at"]] == ["stripe"]
    assert run("resume", "stripe").code == 0 and run("resume", "stripe").code == 1
    done: list[Any] = rows("SELECT actor, action FROM webhook_audit ORDER BY id")
    assert done[0] == ("jane", "pause") and done[1][1] == "resume" and len(done) == 2


# -- a pause that ends by itself ------------------------------------------------------------------------------------


async def test_worker_continues_when_a_pause_ends(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"])
    handled: list[str] = []

    @inbox.on("stripe", "*")
    async def paid(event: Event) -> None:
        handled.append(event.id)

    async with inbox.lifespan():
        await inbox._runtime.store.pauses.pause("stripe", "jane", seconds=1.0)
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        assert handled == []
        await eventually(lambda: handled, "the worker handles the event after the pause", within=20)
    ((ended,),) = rows("SELECT count(*) FROM webhook_audit WHERE action = 'resume' AND actor = 'oncehook'")
    assert ended == 1


def test_pause_command_shows_the_end_and_the_reason(run: Run, database: str, in_folder: Path) -> None:
    write_config(in_folder, database)

    async def make() -> None:
        async with open_store(database):
            pass

    asyncio.run(make())
    result = run("pause", "stripe", "--for", "2h", "--reason", "moving house")
    assert result.code == 0 and "Z (moving house)" in result.out
    assert result.out.startswith("stripe is paused until 20")
    assert "until 20" in run("stats").out and "(moving house)" in run("stats").out
    row = run("stats", "--json").lines[0]
    assert row["paused_until"] > row["paused_at"] and row["paused_reason"] == "moving house"
    again = run("pause", "stripe", "--json")
    assert again.code == 1 and again.lines[0]["changed"] is False and again.lines[0]["ends_at"] is not None
    assert run("resume", "stripe").code == 0
    assert run("pause", "stripe", "--for", "soon").code == 2


@pytest.mark.parametrize("length", ["0s", "0", "99999999d"])
def test_invalid_length_of_a_pause_is_a_usage_error(length: str, run: Run, database: str, in_folder: Path) -> None:
    write_config(in_folder, database)
    result = run("pause", "stripe", "--for", length)
    assert result.code == 2 and "expected more than 0 and at most 366d" in result.error
    assert "is paused" not in run("stats").out
