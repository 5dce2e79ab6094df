"""Shards of a running inbox: each source is claimed, handled and forgotten in its own database."""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from oncehook import Event, Inbox
from oncehook.concurrency.clock import SYSTEM
from oncehook.config.shard_settings import ShardSettings
from oncehook.model.claim import Claim, Claimed
from oncehook.model.errors import ConfigurationError, SourceMoved, StoreUnavailable
from oncehook.model.states import State
from oncehook.runtime import shards
from oncehook.store.routes import Routes
from oncehook.store.shards import IDS_PER_SHARD
from tests.support.events import make_claim
from tests.support.servers import Postgres, run_sql
from tests.support.shards import ShardDatabases, post, shard_databases, stripe_sources
from tests.support.waiting import eventually, next_turn

pytestmark = pytest.mark.anyio

POSTMARK = '[sources.postmark]\nsecrets = ["user:password"]\nemail = true'


@pytest.fixture
def databases(postgres: Postgres, tmp_path: Path) -> Iterator[ShardDatabases]:
    with shard_databases(postgres, tmp_path, "a", "b") as made:
        yield made


def make(databases: ShardDatabases, *, worker: bool = False, **tables: str) -> Inbox:
    tables = {
        "sources": stripe_sources("one", "two", "three"),
        "a": 'sources = ["one"]',
        "b": 'sources = ["tw*"]',
    } | tables
    return Inbox(config=databases.configuration(**tables), worker=worker)


async def test_each_source_is_claimed_in_its_shard_and_its_numbers_do_not_clash(databases: ShardDatabases) -> None:
    inbox = make(databases)
    async with inbox.lifespan():
        for source in ("one", "two", "three"):
            assert await post(inbox, source, "evt_1") == 202
            assert await post(inbox, source, "evt_1") == 200
    found = {shard: databases.rows(shard, "SELECT source, id FROM webhook_receipts") for shard in databases.addresses}
    assert {shard: [row[0] for row in rows] for shard, rows in found.items()} == {
        "main": ["three"], "a": ["one"], "b": ["two"],
    }  # fmt: skip
    numbers = {shard: rows[0][1] // IDS_PER_SHARD for shard, rows in found.items()}
    assert numbers["main"] == 0 and sorted([numbers["a"], numbers["b"]]) == [1, 2]


def is_ledger(databases: ShardDatabases, shard: str, expected: list[tuple[str]]) -> bool:
    return databases.rows(shard, "SELECT event_id FROM ledger ORDER BY 1") == expected


async def test_handlers_run_in_the_database_of_their_event(databases: ShardDatabases) -> None:
    databases.create_ledgers()
    inbox = make(databases, worker=True)

    for source in ("one", "three"):

        @inbox.on(source, "*")
        async def handle(event: Event, tx: Any) -> None:
            await tx.execute("INSERT INTO ledger (event_id) VALUES ($1)", f"{event.source}:{event.id}")

    async with inbox.lifespan():
        for number in range(3):
            assert await post(inbox, "one", f"evt_{number}") == 202
            assert await post(inbox, "three", f"evt_{number}") == 202
        for shard, source in (("a", "one"), ("main", "three")):
            expected = [(f"{source}:evt_{number}",) for number in range(3)]
            has_written = partial(is_ledger, databases, shard, expected)
            await eventually(has_written, "the handlers of a shard have written to its database")
    assert databases.rows("b", "SELECT * FROM ledger") == []


async def test_inline_source_is_handled_in_its_shard(databases: ShardDatabases) -> None:
    databases.create_ledgers()
    inbox = make(databases, worker=True, sources=stripe_sources("one", extra='mode = "inline"'), b="")

    @inbox.on("one", "*")
    async def handle(event: Event, tx: Any) -> None:
        await tx.execute("INSERT INTO ledger (event_id) VALUES ($1)", event.id)

    async with inbox.lifespan():
        assert await post(inbox, "one", "evt_1") == 200
        assert await post(inbox, "one", "evt_1") == 200
    assert databases.rows("a", "SELECT event_id FROM ledger") == [("evt_1",)]


async def test_tenants_are_spread_and_each_stays_in_its_shard(databases: ShardDatabases) -> None:
    tables = {"a": 'tenants = ["one"]', "b": 'tenants = ["one"]', "sources": ""}

    def spread() -> Inbox:
        inbox = Inbox(config=databases.configuration(**tables), worker=False)
        inbox.source("one", provider="stripe", secrets_for=lambda tenant: ["whsec_test"])
        return inbox

    for status in (202, 200):
        inbox = spread()
        async with inbox.lifespan():
            for number in range(20):
                assert await post(inbox, f"one/t{number}", "evt_1") == status
    counts = {shard: len(databases.events(shard)) for shard in databases.addresses}
    assert counts["main"] == 0 and counts["a"] + counts["b"] == 20 and min(counts["a"], counts["b"]) > 2
    tables["b"] = ""
    with pytest.raises(ConfigurationError, match="cannot be changed"):
        await spread().start()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"a": 'sources = ["nine"]'}, "does not exist"),
        ({"a": 'sources = ["postmark"]', "sources": POSTMARK, "b": ""}, "needs the shard main"),
        ({"a": 'tenants = ["one"]', "sources": stripe_sources("one"), "b": ""}, "has no tenants"),
    ],
)
async def test_shards_that_cannot_work_are_an_error_at_start(
    databases: ShardDatabases, tables: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        await make(databases, worker=False, **tables).start()


async def test_configuration_does_not_move_a_source_that_has_events(
    databases: ShardDatabases, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    for tables in ({}, {"a": "", "b": 'sources = ["one"]'}):  # the second names another shard
        inbox = make(databases, worker=False, **tables)
        async with inbox.lifespan():
            assert await post(inbox, "one", "evt_1") == (200 if tables else 202)
    assert databases.events("a") == ["evt_1"] and databases.events("b") == []
    differs = [fields for line, fields in emitted if line == "shard_differs"]
    assert {"source": "one", "shard": "a", "configured": "b"} in differs


async def test_source_with_events_in_main_is_moved_and_not_just_configured(databases: ShardDatabases) -> None:
    inbox = Inbox(databases.addresses["main"], worker=False)
    inbox.source("one", provider="stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        assert await post(inbox, "one", "evt_1") == 202
    with pytest.raises(ConfigurationError, match="oncehook shards move one --to a"):
        await make(databases).start()
    async with make(databases, worker=False, a="").lifespan():
        pass  # it stays in `main`


async def test_database_with_events_cannot_become_a_shard(databases: ShardDatabases) -> None:
    run_sql(databases.addresses["a"], "SELECT nextval('webhook_receipt_ids')")
    with pytest.raises(ConfigurationError, match="already has events"):
        await make(databases).start()


async def test_database_of_another_shard_is_rejected(databases: ShardDatabases) -> None:
    inbox = make(databases)
    async with inbox.lifespan():
        pass
    addresses = databases.addresses
    addresses["a"], addresses["b"] = addresses["b"], addresses["a"]
    with pytest.raises(ConfigurationError, match="is the shard"):
        await make(databases).start()


async def test_claim_reads_the_routes_without_a_task_and_only_once(databases: ShardDatabases) -> None:
    """The receiver runs plain deliveries without a task."""
    reads: list[str] = []

    class Moved:
        async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
            raise SourceMoved("moved")

    class Accepts:
        async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
            return [Claimed(1, True, State.RECEIVED, b"")] * len(claims)

    routes = Routes({"a": ShardSettings(database="postgresql://a")})

    async def refresh() -> None:
        reads.append("read")
        await next_turn()
        routes.moved = {"one": "a"}
        routes._found.clear()

    step = shards.ShardClaims(routes, {"main": Moved, "a": Accepts}, refresh, SYSTEM)
    done: list[list[Claimed]] = []

    def drive(claiming: Coroutine[Any, Any, list[Claimed]], _: object = None) -> None:
        try:
            claiming.send(None).add_done_callback(partial(drive, claiming))
        except StopIteration as finished:
            done.append(finished.value)

    loop = asyncio.get_running_loop()
    for _ in range(3):
        loop.call_soon(drive, step.claim([make_claim(source="one")]))
    await eventually(lambda: len(done) == 3, "all claims are accepted")
    assert reads == ["read"]
    mixed = [make_claim(source="one"), make_claim(source="one", tenant="t1")]
    assert len(await step.claim(mixed)) == 2
    closed = shards.ShardClaims(routes, {"main": Moved, "a": Moved}, refresh, SYSTEM)
    for _ in range(2):
        with pytest.raises(StoreUnavailable):  # not RowRefused: the spool and brokers must try again
            await closed.claim([make_claim(source="one")])


async def test_shard_that_is_down_stops_only_its_own_sources(
    databases: ShardDatabases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "CONNECT_EVERY", 0.05)
    down = databases.addresses["a"].rpartition("/")[2]
    admin = databases.addresses["main"]
    run_sql(admin, f"ALTER DATABASE {down} ALLOW_CONNECTIONS false")
    inbox = make(databases, worker=False, top='claim_timeout = "500ms"')
    async with inbox.lifespan():
        assert await post(inbox, "one", "evt_1") == 503
        assert await post(inbox, "two", "evt_1") == 202
        assert await post(inbox, "three", "evt_1") == 202
        await inbox.ready()
        assert list(inbox._runtime.readiness.unavailable) == ["a"]
        run_sql(admin, f"ALTER DATABASE {down} ALLOW_CONNECTIONS true")

        async def is_accepted() -> bool:
            return await post(inbox, "one", "evt_1") in (200, 202)

        await eventually(is_accepted, "the process connects to the shard again")

        async def is_ready() -> bool:
            await inbox.ready()
            return not inbox._runtime.readiness.unavailable

        await eventually(is_ready, "all shards are available")

        # The same while the process runs.
        run_sql(admin, f"ALTER DATABASE {down} ALLOW_CONNECTIONS false")
        run_sql(admin, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{down}'")
        assert await post(inbox, "one", "evt_2") == 503
        assert await post(inbox, "two", "evt_2") == 202
        run_sql(admin, f"ALTER DATABASE {down} ALLOW_CONNECTIONS true")
        await eventually(is_accepted, "the pool connects again")
    assert databases.rows("a", "SELECT min(id) > 1000 FROM webhook_receipts") == [(True,)]
