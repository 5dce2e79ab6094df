"""A paused source accepts and does no work: in every process, after a restart, and at no cost to the others."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from oncehook import Event, Inbox
from oncehook.config.settings import Settings
from oncehook.model.receipt import Filter
from oncehook.store import backlog, make_store, queries
from oncehook.store.pauses import handled_parameters
from oncehook.store.postgres.dialect import POSTGRES
from oncehook.store.store import Store
from oncehook.testing import deliver, drain
from tests.support.command_line import Run
from tests.support.events import Rows, make_claim, stripe_body
from tests.support.serve import write_config
from tests.support.servers import Postgres, ask
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio
LEDGER = "SELECT source, event_id, status, attempts FROM webhook_receipts ORDER BY id"


@asynccontextmanager
async def opened(database: str) -> AsyncIterator[Store]:
    store = make_store(Settings(database=database))
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def leased(store: Store, limit: int = 10) -> list[str]:
    return sorted(one.event_id for one in await store.leases.take(limit, 30, "test"))


# -- the store ------------------------------------------------------------------------------------------------------


async def test_nothing_of_a_paused_source_is_leased_by_any_process_and_after_a_restart(
    database: str, rows: Rows
) -> None:
    async with opened(database) as one, opened(database) as other:
        assert await leased(other) == []  # it has looked, and knows of no pause
        assert await one.pauses.pause("stripe", "jane") and not await one.pauses.pause("stripe", "joe")
        await one.claims.insert([make_claim("a"), make_claim("b", source="github"), make_claim("c", serial_key="k")])
        await one.claims.insert([make_claim("d", source="github", serial_key="k")])
        assert await leased(other) == ["b", "d"]
    async with opened(database) as later:
        assert await leased(later) == []
        assert [(row.source, row.actor) for row in await later.pauses.active()] == [("stripe", "jane")]
        assert await later.pauses.resume("stripe", "joe") and not await later.pauses.resume("stripe", "joe")
        assert await leased(later) == ["a", "c"]
    audited = rows("SELECT actor, action, detail FROM webhook_audit ORDER BY id")
    told = json.dumps({"source": "stripe"})
    assert audited == [("jane", "pause", told), ("joe", "resume", told)]


async def test_others_keep_their_turn_behind_many_serial_keys_of_a_paused_source(database: str) -> None:
    async with opened(database) as store:
        await store.claims.insert([make_claim(f"p{n:03}", source="a", serial_key=f"k{n:03}") for n in range(400)])
        await store.claims.insert([make_claim(f"w{n}", source="b", serial_key=f"k{n}") for n in range(5)])
        await store.pauses.pause("a", "me")
        assert await leased(store, 2) == ["w0", "w1"]
        assert await leased(store, 2) == ["w2", "w3"]
        assert await leased(store, 2) == ["w4"]


async def test_what_lies_before_the_paused_backlog_and_what_is_replayed_is_found(
    database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "WINDOW", 7)
    monkeypatch.setattr(backlog, "REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(backlog, "SEARCH_INTERVAL_FACTOR", 0)
    async with opened(database) as store:
        for n in range(30):
            await store.claims.insert([make_claim(f"p{n}")])
        await store.claims.insert([make_claim("late", source="github")])
        await store.pauses.pause("stripe", "me")
        assert await leased(store) == ["late"]
        await store.claims.insert([make_claim("later", source="github")])
        first = rows("SELECT min(received_at) FROM webhook_receipts")[0][0]
        rows(f"UPDATE webhook_receipts SET received_at = '{first}' WHERE event_id = 'later'")
        assert await leased(store) == ["later"]
        assert await leased(store) == []


async def test_a_paused_backlog_is_not_passed_over_by_every_lease(postgres: Postgres) -> None:
    database = postgres.database(migrated=True)
    async with opened(database) as store:
        ask(
            database,
            """INSERT INTO webhook_receipts (id, source, provider, event_id, type, received_at, status, fingerprint)
            SELECT n, CASE WHEN n % 500 = 0 THEN 'github' ELSE 'stripe' END, 'p', 'e' || n, 't',
                   now() - (60000 - n) * interval '1 second', CASE WHEN n % 500 = 0 AND n < 40000 THEN 'processed'
                   ELSE 'received' END, '\\x00' FROM generate_series(1, 50000) n""",
        )
        ask(database, "ANALYZE webhook_receipts")
        await store.pauses.pause("stripe", "me")
        assert len(await store.leases.take(1, 30, "test")) == 1
        text, names = queries.number_parameters(store.sql["lease"])  # type: ignore[attr-defined]
        given = {"limit": 1, "rescued": False, "worker": "w", "seconds": 30.0, "floor": store.pauses.backlog.floor}  # type: ignore[attr-defined]
        given |= handled_parameters(POSTGRES, None)
        connection = await asyncpg.connect(database)
        try:
            rows = await connection.fetch(f"EXPLAIN (ANALYZE) {text}", *(given[name] for name in names))
        finally:
            await connection.close()
    plan = "\n".join(row[0] for row in rows)
    assert "Index Scan using webhook_receipts_due" in plan, plan
    passed = [int(line.split(":")[1]) for line in plan.splitlines() if "Rows Removed by Filter" in line]
    assert sum(passed) < 1500, plan


# -- who works ------------------------------------------------------------------------------------------------------


async def test_what_runs_ends_and_what_is_held_goes_back_uncounted(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(worker=True, concurrency=1)
    inbox.source("stripe", secrets=["whsec_test"])
    started, go = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    @inbox.on("stripe", "*")
    async def slow(event: Event) -> None:
        started.set()
        await go.wait()
        seen.append(event.id)

    async with inbox.lifespan(), opened(database) as person:
        for n in range(4):
            assert (await deliver(inbox, "stripe", stripe_body(f"evt_{n}"))).status == 202
        await started.wait()
        await eventually(lambda: len(rows("SELECT 1 FROM webhook_receipts WHERE status = 'processing'")) > 1)
        await person.pauses.pause("stripe", "jane")
        await eventually(lambda: len(rows("SELECT 1 FROM webhook_receipts WHERE status = 'processing'")) == 1)
        go.set()
        await eventually(lambda: ("processed",) in rows("SELECT status FROM webhook_receipts"))
        assert (await deliver(inbox, "stripe", stripe_body("evt_4"))).status == 202
        assert len(seen) == 1
        assert sorted(row[2:] for row in rows(LEDGER)) == [("processed", 1), *[("received", 0)] * 4]
        await person.pauses.resume("stripe", "jane")
        await eventually(lambda: len(seen) == 5)


async def test_an_inline_source_that_is_paused_answers_503_and_records_nothing(
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
        async with asyncio.timeout(20):
            while (await deliver(inbox, "stripe", stripe_body("evt_1"))).status == 503:
                await asyncio.sleep(0.1)
    assert rows(LEDGER) == [("stripe", "evt_1", "processed", 1)]


async def test_a_forward_waits_too_and_a_drain_of_a_test_ends(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"], forward="http://127.0.0.1:1/nobody")
    inbox.source("github", secrets=["github-secret"])
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1"))
        await inbox._runtime.store.pauses.pause("stripe", "me")
        assert list(await drain(inbox)) == []
        assert await inbox._runtime.store.leases.next_due() is None
        (receipt,) = await inbox._runtime.store.receipts.find(Filter(), limit=5)
        assert (receipt.status, receipt.attempts) == ("received", 0)


# -- the command line -----------------------------------------------------------------------------------------------


def test_pause_and_resume_by_command_and_stats_says_so(run: Run, in_folder: Path, database: str, rows: Rows) -> None:
    write_config(in_folder, database)
    assert run("migrate").code == 0
    assert run("pause", "nobody").code == 2
    paused = run("pause", "stripe", "--actor", "jane")
    assert paused.code == 0 and "stripe is paused" in paused.out
    again = run("pause", "stripe", "--json")
    assert again.code == 1 and json.loads(again.out)["changed"] is False
    assert "oncehook resume stripe" in run("stats").out
    told = [json.loads(line) for line in run("stats", "--json").out.splitlines()]
    assert [row["source"] for row in told if row["paused_at"]] == ["stripe"]
    assert run("resume", "stripe").code == 0 and run("resume", "stripe").code == 1
    done: list[Any] = rows("SELECT actor, action FROM webhook_audit ORDER BY id")
    assert done[0] == ("jane", "pause") and done[1][1] == "resume" and len(done) == 2


# -- a pause that ends by itself ------------------------------------------------------------------------------------


async def test_pause_ends_by_itself_by_the_time_of_the_database(database: str, rows: Rows) -> None:
    async with opened(database) as store:
        assert await store.pauses.pause("stripe", "jane", reason="moving", seconds=3600.0)
        (pause,) = await store.pauses.active()
        assert pause.reason == "moving" and pause.ends_at > pause.paused_at
        await store.claims.insert([make_claim("a"), make_claim("b", serial_key="k")])
        assert await leased(store) == []
        assert not await store.pauses.pause("stripe", "joe", seconds=1.0)
        rows("UPDATE webhook_pauses SET ends_at = paused_at")  # the hour is over
        assert await store.pauses.active() == []
    async with opened(database) as later:
        assert await leased(later) == ["a", "b"]
    assert rows("SELECT count(*) FROM webhook_pauses") == [(0,)]
    by_itself = rows("SELECT action, detail FROM webhook_audit WHERE actor = 'oncehook'")
    assert [(action, json.loads(detail)["source"]) for action, detail in by_itself] == [("resume", "stripe")]


async def test_pause_that_is_over_is_no_pause_before(database: str, rows: Rows) -> None:
    async with opened(database) as store:
        await store.pauses.pause("stripe", "jane", reason="moving", seconds=3600.0)
        rows("UPDATE webhook_pauses SET ends_at = paused_at")
        assert await store.pauses.pause("stripe", "joe")
        (pause,) = await store.pauses.active()
        assert (pause.actor, pause.reason, pause.ends_at) == ("joe", None, None)


async def test_worker_goes_on_when_a_pause_ends(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
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
        async with asyncio.timeout(20):
            while not handled:
                await asyncio.sleep(0.02)
    ((ended,),) = rows("SELECT count(*) FROM webhook_audit WHERE action = 'resume' AND actor = 'oncehook'")
    assert ended == 1


def test_command_says_until_when_and_why(run: Run, database: str, in_folder: Path) -> None:
    write_config(in_folder, database)

    async def make() -> None:
        async with opened(database):
            pass

    asyncio.run(make())
    told = run("pause", "stripe", "--for", "2h", "--reason", "moving house")
    assert told.code == 0 and told.out.startswith("stripe is paused until 20") and "Z (moving house)" in told.out
    assert "until 20" in run("stats").out and "(moving house)" in run("stats").out
    row = run("stats", "--json").lines[0]
    assert row["paused_until"] > row["paused_at"] and row["paused_reason"] == "moving house"
    again = run("pause", "stripe", "--json")
    assert again.code == 1 and again.lines[0]["changed"] is False and again.lines[0]["ends_at"] is not None
    assert run("resume", "stripe").code == 0
    assert run("pause", "stripe", "--for", "soon").code == 2


@pytest.mark.parametrize("length", ["0s", "0", "99999999d"])
def test_pause_without_a_time_that_a_database_can_keep_is_a_usage_error(
    length: str, run: Run, database: str, in_folder: Path
) -> None:
    write_config(in_folder, database)
    refused = run("pause", "stripe", "--for", length)
    assert refused.code == 2 and "expected more than 0 and at most 366d" in refused.error
    assert "is paused" not in run("stats").out
