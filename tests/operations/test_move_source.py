"""Moves of a source between two shards: the copied rows, the guards, and what interrupted moves leave."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from oncehook import Event, Inbox
from oncehook.model.errors import SourceMoved
from oncehook.operations.move_plan import MoveRefused, plan_move
from oncehook.operations.move_source import SourceMove
from oncehook.store.shards import MoveChanged
from tests.support.events import make_claim
from tests.support.servers import Postgres, run_sql
from tests.support.shards import ShardDatabases, federation_of, post, shard_databases, stripe_sources
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

COPIED = ("receipts", "payloads", "keys", "past_attempts", "deliveries", "effects", "noops", "entities")


@pytest.fixture
def databases(postgres: Postgres, tmp_path: Path) -> Iterator[ShardDatabases]:
    with shard_databases(postgres, tmp_path, "a") as made:
        made.create_ledgers()
        yield made


class Failing(Exception):
    """A failure of a handler."""


def make(databases: ShardDatabases, *, worker: bool = True) -> Inbox:
    """An inbox whose handlers write the ledger, request an effect, advance an entity, and fail for some events."""
    configuration = databases.configuration(sources=stripe_sources("one", "two", extra="max_attempts = 1"), a="")
    inbox = Inbox(config=configuration, worker=worker)

    @inbox.effect
    async def mail(effect: Any, name: str) -> None:
        run_sql(databases.addresses["main"], f"INSERT INTO sent (name) VALUES ('{name}')")

    for source in ("one", "two"):

        @inbox.on(source, "*")
        async def handle(event: Event, tx: Any) -> None:
            await tx.execute("INSERT INTO ledger (event_id) VALUES ($1)", f"{event.source}:{event.id}:{event.attempt}")
            if event.id.startswith("bad"):
                raise Failing
            await event.advance("invoice", event.id, state="paid")
            await event.effect(f"mail-{event.id}", mail, name=f"{event.source}:{event.id}")

    return inbox


@asynccontextmanager
async def running(databases: ShardDatabases, *, worker: bool = True) -> AsyncIterator[Inbox]:
    run_sql(databases.addresses["main"], "CREATE TABLE IF NOT EXISTS sent (name text)")
    inbox = make(databases, worker=worker)
    async with inbox.lifespan():
        yield inbox


async def mover(inbox: Inbox, to: str | None = "a", source: str = "one", **options: Any) -> SourceMove:
    federation = federation_of(inbox)
    await federation.routes.load(federation.main.shards)  # type: ignore[arg-type]
    plan = await plan_move(federation.members, federation.routes, source, to)
    return SourceMove(federation.members, source, plan, actor="test", **{"wait": 10.0, **options})


async def refresh(inbox: Inbox) -> None:
    """Read the routes now, as every process does within a second."""
    assert inbox._runtime.shards is not None
    await inbox._runtime.shards.refresh()


def rows_of(databases: ShardDatabases, shard: str, table: str) -> list[tuple[Any, ...]]:
    """All rows of a table except the ids that a move changes."""
    left_out = {"past_attempts": " - 'id'", "deliveries": " - 'id'", "noops": " - 'id'"}.get(table, "")
    return sorted(databases.rows(shard, f"SELECT (to_jsonb(t){left_out})::text FROM webhook_{table} t"))


async def settle(databases: ShardDatabases, shard: str, number: int) -> None:
    sql = "SELECT count(*) FROM webhook_receipts WHERE status IN ('processed', 'failed')"
    done = "SELECT count(*) FROM webhook_effects WHERE status <> 'done'"
    await eventually(
        lambda: databases.rows(shard, sql) == [(number,)] and databases.rows(shard, done) == [(0,)], "all are handled"
    )


async def test_move_copies_every_row_and_nothing_runs_twice(databases: ShardDatabases) -> None:
    async with running(databases) as inbox:
        for number in range(5):
            for event in (f"evt_{number}", f"bad_{number}"):
                assert await post(inbox, "one", event) == 202
        assert await post(inbox, "two", "evt_0") == 202
        assert await post(inbox, "one", "evt_0") == 200
        await settle(databases, "main", 11)
        await eventually(lambda: len(rows_of(databases, "main", "deliveries")) == 1, "the duplicate is recorded")
        run_sql(databases.addresses["main"], "CREATE TABLE stay AS SELECT * FROM webhook_receipts WHERE source = 'two'")
        before = {table: rows_of(databases, "main", table) for table in COPIED}
        moved = await (await mover(inbox)).run()
        after = {table: rows_of(databases, "a", table) for table in COPIED}
        stay = {table: rows_of(databases, "main", table) for table in COPIED}
        assert {table: sorted(after[table] + stay[table]) for table in COPIED} == before
        assert len(after["receipts"]) == 10 and len(stay["receipts"]) == 1
        assert moved.counts == {"receipts": 10, "keys": 0, "effects": 5}

        await refresh(inbox)
        assert await post(inbox, "one", "evt_0") == 200  # still a duplicate
        assert await post(inbox, "one", "evt_9") == 202
        await settle(databases, "a", 11)
        replayed = await inbox.replay(source="one", status="failed")
        assert replayed.count == 5
        replayed = await inbox.replay(source="one", type="invoice.paid", since="1h")
        await eventually(
            lambda: len(databases.rows("a", "SELECT * FROM webhook_noops")) >= 5, "effects are not repeated"
        )
    sent = sorted(name for (name,) in run_sql(databases.addresses["main"], "SELECT name FROM sent"))
    assert sent == sorted([*(f"one:evt_{n}" for n in range(5)), "one:evt_9", "two:evt_0"])


TRIGGERS = "SELECT tgname FROM pg_trigger WHERE tgname ~ '^webhook_(guard|note|drop)_' AND tgparentid = 0"


async def test_source_moves_back_and_forth(databases: ShardDatabases) -> None:
    async with running(databases) as inbox:
        for number, to in enumerate(("a", "main", "a")):
            assert await post(inbox, "one", f"evt_{number}") == 202
            await settle(databases, "main" if to == "a" else "a", number + 1)
            await (await mover(inbox, to)).run()
            assert databases.events("a" if to == "main" else "main") == []
            assert len(databases.events(to)) == number + 1
    assert len(databases.rows("main", TRIGGERS)) == 2 and databases.rows("a", TRIGGERS) == []


async def test_process_with_the_old_route_claims_in_the_new_shard(databases: ShardDatabases) -> None:
    async with running(databases, worker=False) as inbox, running(databases, worker=False) as stale:
        await stale._runtime.settings_watch.stop()  # it does not learn of the move by itself
        assert await post(inbox, "one", "evt_1") == 202
        await (await mover(inbox)).run()
        assert await post(stale, "one", "evt_1") == 200
        assert await post(stale, "one", "evt_2") == 202
        assert databases.events("main") == [] and databases.events("a") == ["evt_1", "evt_2"]
        with pytest.raises(SourceMoved):
            await stale._runtime.store.claims.insert([make_claim("evt_3", source="one")])


async def test_events_that_wait_are_moved_and_handled_once(databases: ShardDatabases) -> None:
    async with running(databases, worker=False) as inbox:
        for number in range(20):
            assert await post(inbox, "one", f"evt_{number}") == 202
        await (await mover(inbox)).run()
    async with running(databases):
        await settle(databases, "a", 20)
    ledger = [row[0] for row in databases.rows("a", "SELECT event_id FROM ledger")]
    assert sorted(ledger) == sorted(f"one:evt_{number}:1" for number in range(20))


class Stopped(Exception):
    """A mover that stops at one of its steps, as if it were killed."""


STEPS = ("draining", "frozen", "left", "opened")
"""`tests/faults/test_shard_move.py` kills movers at all steps."""


async def stop_at(move: SourceMove, step: str) -> None:
    """Run a move up to a step."""

    def report(done: Any) -> None:
        if done.phase == step:
            raise Stopped

    move._progress = report
    if step == "left":
        move._open = _stop  # type: ignore[method-assign]
    elif step == "opened":
        move.main = _NoRoutes()  # type: ignore[assignment]
    with pytest.raises(Stopped):
        await move.run()


async def _stop(*args: Any, **kwargs: Any) -> None:
    raise Stopped


class _NoRoutes:
    put_route = staticmethod(_stop)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", STEPS)
async def test_move_that_stops_anywhere_is_continued(databases: ShardDatabases, step: str) -> None:
    async with running(databases) as inbox:
        for number in range(6):
            assert await post(inbox, "one", f"evt_{number}") == 202
        await settle(databases, "main", 6)
        await stop_at(await mover(inbox), step)
        status = await post(inbox, "one", "evt_6")
        assert status == (503 if step in ("frozen", "left", "opened") else 202)
        await (await mover(inbox)).run()
        await refresh(inbox)

        async def is_accepted() -> bool:
            return await post(inbox, "one", "evt_6") in (200, 202)

        await eventually(is_accepted, "the new shard accepts")
        await settle(databases, "a", 7)
    assert databases.events("main") == [] and len(databases.events("a")) == 7
    handled = [databases.rows(shard, "SELECT event_id FROM ledger") for shard in ("main", "a")]
    assert sorted(row[0] for rows in handled for row in rows) == [f"one:evt_{number}:1" for number in range(7)]
    sent = sorted(name for (name,) in run_sql(databases.addresses["main"], "SELECT name FROM sent"))
    assert sent == [f"one:evt_{number}" for number in range(7)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", ["begin", "copying", "frozen"])
async def test_move_is_aborted_before_its_commit(databases: ShardDatabases, step: str) -> None:
    async with running(databases) as inbox:
        assert await post(inbox, "one", "evt_1") == 202
        await settle(databases, "main", 1)
        await stop_at(await mover(inbox), step)
        await (await mover(inbox, None if step != "begin" else "a")).abort()

        async def is_accepted() -> bool:
            return await post(inbox, "one", "evt_2") in (200, 202)

        await eventually(is_accepted, "the old shard accepts")
        await settle(databases, "main", 2)
        assert databases.events("a") == []
        assert [databases.rows(shard, TRIGGERS) for shard in ("main", "a")] == [[], []], "nothing is recorded"
        await (await mover(inbox)).run()
        assert databases.events("a") == ["evt_1", "evt_2"]


async def test_move_cannot_be_aborted_after_its_commit(databases: ShardDatabases) -> None:
    async with running(databases, worker=False) as inbox:
        await stop_at(await mover(inbox), "left")
        with pytest.raises(MoveRefused, match="continue the move"):
            await (await mover(inbox, None)).abort()


async def test_mover_that_slept_changes_nothing_after_another_has_finished(databases: ShardDatabases) -> None:
    async with running(databases, worker=False) as inbox:
        assert await post(inbox, "one", "evt_1") == 202
        asleep = await mover(inbox)
        copying = await mover(inbox)
        await stop_at(copying, "comparing")
        await (await mover(inbox)).run()
        for late in (asleep, copying):
            late._progress = lambda done: None
            with pytest.raises(MoveChanged):
                await late.run()
        with pytest.raises(MoveChanged):
            await copying.old.copy_receipts("one", [1], copying.new)
        with pytest.raises(MoveRefused, match="already"):
            await mover(inbox)
        await (await mover(inbox, "main")).run()
        with pytest.raises(MoveChanged):
            await copying._delete(copying.old)
    assert databases.events("main") == ["evt_1"]


async def test_move_waits_for_a_handler_and_resumes_the_source_if_it_does_not_end(databases: ShardDatabases) -> None:
    ends = asyncio.Event()
    inbox = Inbox(config=databases.configuration(sources=stripe_sources("one"), a=""), worker=True)
    begun = asyncio.Event()

    @inbox.on("one", "*")
    async def handle(event: Event, tx: Any) -> None:
        begun.set()
        await ends.wait()
        await tx.execute("INSERT INTO ledger (event_id) VALUES ($1)", event.id)

    async with inbox.lifespan():
        assert await post(inbox, "one", "evt_1") == 202
        await begun.wait()
        with pytest.raises(MoveRefused, match="1 handlers or effects of one still run"):
            await (await mover(inbox, wait=0.2)).run()
        moving = asyncio.create_task((await mover(inbox)).run())
        await eventually(
            lambda: databases.rows("main", "SELECT phase FROM webhook_moves") == [("draining",)], "it drains"
        )
        assert await post(inbox, "one", "evt_2") == 202  # accepted, and not handled yet
        ends.set()
        await moving
        await settle(databases, "a", 2)
    assert databases.rows("main", "SELECT event_id FROM ledger") == [("evt_1",)]
    assert databases.rows("a", "SELECT event_id FROM ledger") == [("evt_2",)]


async def test_large_bodies_and_the_receipts_of_consumers_move(databases: ShardDatabases, tmp_path: Path) -> None:
    top = f'payload_store = "file://{tmp_path / "payloads"}"\npayload_threshold = "1KiB"'
    inbox = Inbox(config=databases.configuration(top=top, sources=stripe_sources("one"), a=""), worker=True)
    handled: list[tuple[str, int]] = []

    for consumer in ("main", "search"):

        @inbox.on("one", "*", consumer=consumer)
        async def handle(event: Event) -> None:
            handled.append((event.consumer, len(event.raw)))
            await event.advance("invoice", "in_1", version=1)

    async with inbox.lifespan():
        assert await post(inbox, "one", "evt_1", filler="x" * 5000) == 202
        await settle(databases, "main", 2)
        run_sql(databases.addresses["main"], "UPDATE webhook_entities SET receipt_id = 1")  # as if it was pruned
        await (await mover(inbox)).run()
        assert databases.rows("main", "SELECT * FROM webhook_payload_objects") == []
        assert databases.rows("a", "SELECT scope FROM webhook_entities ORDER BY 1") == [("one",), ("one@search",)]
        assert len(databases.rows("a", "SELECT * FROM webhook_payload_objects WHERE NOT is_released")) == 1
        await refresh(inbox)
        assert (await inbox.replay("evt_1")).count == 2
        await eventually(lambda: len(handled) == 4, "both consumers handle the event again")
    assert {size > 5000 for _, size in handled} == {True}
    assert sorted(consumer for consumer, _ in handled) == ["main", "main", "search", "search"]


async def test_pause_of_a_person_moves_with_the_source(databases: ShardDatabases) -> None:
    async with running(databases) as inbox:
        run_sql(databases.addresses["main"], "INSERT INTO webhook_pauses (source, actor) VALUES ('one', 'jane')")
        assert await post(inbox, "one", "evt_1") == 202
        await (await mover(inbox)).run()
        assert databases.rows("a", "SELECT actor FROM webhook_pauses") == [("jane",)]
        assert await inbox.resume("one")
        await settle(databases, "a", 1)


async def test_sources_with_a_common_scope_of_effects_are_not_separated(databases: ShardDatabases) -> None:
    async with running(databases, worker=False) as inbox:
        insert = "INSERT INTO webhook_effects (scope, key, kind, target, source, receipt_id, status)"
        for source in ("one", "two"):
            run_sql(
                databases.addresses["main"], f"{insert} VALUES ('both', '{source}', 'x', 'x', '{source}', 1, 'done')"
            )
        with pytest.raises(MoveRefused, match="'both'"):
            await (await mover(inbox)).check()
