"""The identity of a shard, its routes, and the guard of a source that is moved."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Literal

import asyncpg
import pytest

from oncehook.config.settings import Settings
from oncehook.model.errors import ConfigurationError, SourceMoved, StoreUnavailable
from oncehook.model.states import State
from oncehook.store import make_store
from oncehook.store.shards import IDS_PER_SHARD, Move, MoveChanged, Route, Shard, ShardStore
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.servers import Postgres, run_sql
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio


@pytest.fixture
def address(postgres: Postgres) -> str:
    return postgres.database(migrated=True)


@pytest.fixture
async def store(address: str) -> AsyncIterator[Store]:
    store = make_store(Settings(database=address))
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def shards(store: Store) -> ShardStore:
    assert store.shards is not None
    return store.shards


# Only in this test's database: the tests of other processes run on the same server.
WAITING = """
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def move(phase: str, source: str = "stripe") -> Move:
    return Move(source, phase, "main", "a")


async def test_each_name_has_one_number_and_each_database_one_name(shards: ShardStore, store: Store) -> None:
    numbers = await asyncio.gather(*(shards.number_of(name) for name in ("a", "b", "a", "c")))
    assert numbers[0] == numbers[2] and sorted({*numbers}) == [1, 2, 3]
    assert await shards.here() is None
    await shards.become("x", 7)
    await shards.become("x", 7)
    assert await shards.here() == Shard("x", 7)
    for other in (("x", 8), ("y", 7)):
        with pytest.raises(ConfigurationError, match="is the shard x"):
            await shards.become(*other)
    (receipt,) = await claim(store, "evt_1")
    assert receipt == 7 * IDS_PER_SHARD + 1


async def test_database_with_events_can_only_be_main(shards: ShardStore, store: Store) -> None:
    await claim(store, "evt_1")
    with pytest.raises(ConfigurationError, match="already has events"):
        await shards.become("a", 1)
    await shards.become("main", 0)


async def test_route_is_changed_only_by_who_knows_the_last_change(shards: ShardStore, store: Store) -> None:
    before = await store.directory.revision()
    assert await shards.put_route("one", "a", "jane", number=0)
    assert not await shards.put_route("one", "b", "joe", number=0)
    assert await shards.put_route("one", "b", "jane", number=1)
    assert await shards.routes() == {"one": Route("one", "b", 2)}
    assert await store.directory.revision() > before


@pytest.mark.parametrize("phase", ["arriving", "frozen", "left"])
async def test_guard_rejects_inserts_and_ignores_updates_of_one_source(
    shards: ShardStore, store: Store, address: str, phase: str
) -> None:
    await claim(store, "evt_1", "evt_2")
    await claim(store, "evt_3", source="github")
    assert await shards.begin(move("arriving" if phase == "arriving" else "copying"), "jane")
    for step in {"frozen": ("draining", "frozen"), "left": ("draining", "frozen", "left")}.get(phase, ()):
        assert await shards.set_phase("stripe", step, "jane")
    for event in ("evt_1", "evt_9"):  # a duplicate too: the new shard decides
        with pytest.raises(SourceMoved):
            await store.claims.insert([make_claim(event)])
    run_sql(address, "DELETE FROM webhook_pauses")
    leased = await store.leases.take(10, 30.0, "worker")
    assert [row.event_id for row in leased] == ["evt_3"]
    assert (await store.claims.insert([make_claim("evt_4", source="github")]))[0].fresh
    statuses = run_sql(address, "SELECT DISTINCT status FROM webhook_receipts WHERE source = 'stripe'")
    assert statuses == [("received",)]


async def test_draining_source_accepts_and_settles_and_does_not_lease(
    shards: ShardStore, store: Store, address: str
) -> None:
    await claim(store, "evt_1")
    (leased,) = await store.leases.take(1, 30.0, "worker")
    assert await shards.begin(move("copying"), "jane")
    assert await shards.set_phase("stripe", "draining", "jane")
    await claim(store, "evt_2")
    run_sql(address, "DELETE FROM webhook_pauses")
    assert await store.leases.take(5, 30.0, "worker") == []
    assert await shards.running("stripe") == 1
    await store.leases.release([(leased.receipt, leased.lease)])
    assert await shards.running("stripe") == 0
    changed = {change.key for change in await shards.changes("stripe", 100)}
    assert changed == {str(row[0]) for row in run_sql(address, "SELECT id FROM webhook_receipts")}


async def test_phases_follow_their_order(shards: ShardStore) -> None:
    assert not await shards.set_phase("stripe", "draining", "jane")
    assert not await shards.open("stripe", None)
    assert await shards.begin(move("copying"), "jane")
    assert not await shards.set_phase("stripe", "frozen", "jane")
    assert not await shards.begin(move("arriving"), "jane")  # the source is here
    for phase in ("draining", "copying", "draining", "frozen", "left"):
        assert await shards.set_phase("stripe", phase, "jane")
    assert not await shards.begin(move("copying"), "jane")  # the source has left
    assert not await shards.open("stripe", None)
    assert await shards.begin(move("arriving"), "jane")
    assert await shards.open("stripe", None)
    assert not await shards.begin(move("arriving"), "jane")
    with pytest.raises(MoveChanged):
        await shards.write("stripe", "receipt", "{}", "{}", ())
    with pytest.raises(MoveChanged):
        await shards.delete_leftovers("stripe", 10, unfinished=False)


async def test_change_of_the_phase_waits_for_a_running_claim(shards: ShardStore, address: str) -> None:
    assert await shards.begin(move("copying"), "jane")
    connection = await asyncpg.connect(address)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(INSERT)
        with pytest.raises(StoreUnavailable):  # not for longer than its lock timeout
            await shards.set_phase("stripe", "draining", "jane")
        draining = asyncio.create_task(shards.set_phase("stripe", "draining", "jane"))
        await eventually(lambda: run_sql(address, WAITING) == [(1,)], "the change of the phase waits")
        await transaction.commit()
        assert await draining
    finally:
        await connection.close()


INSERT = """
INSERT INTO webhook_receipts (id, source, provider, event_id, fingerprint, status)
VALUES (1, 'stripe', 'stripe', 'evt_1', '', 'received')
"""


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_claim_that_waited_for_the_change_of_a_phase_sees_the_new_phase(
    shards: ShardStore, address: str, isolation: Literal["read_committed", "repeatable_read"]
) -> None:
    assert await shards.begin(move("copying"), "jane")
    assert await shards.set_phase("stripe", "draining", "jane")
    holder, claimer = await asyncpg.connect(address), await asyncpg.connect(address)
    try:
        hold = holder.transaction()
        await hold.start()
        await holder.execute("SELECT pg_advisory_xact_lock(webhook_move_lock('stripe'))")

        async def insert() -> None:
            async with claimer.transaction(isolation=isolation):
                await claimer.execute(INSERT)

        inserting = asyncio.create_task(insert())
        await eventually(lambda: run_sql(address, WAITING) == [(1,)], "the claim waits")
        await holder.execute("UPDATE webhook_moves SET phase = 'frozen'")
        await hold.commit()
        with pytest.raises(asyncpg.PostgresError) as raised:
            await inserting
        assert raised.value.sqlstate in ("OH003", "40001")
    finally:
        await holder.close()
        await claimer.close()


async def test_source_with_any_name_can_be_watched(shards: ShardStore, address: str) -> None:
    triggers: Callable[[], int] = lambda: len(  # noqa: E731  # read several times
        run_sql(address, "SELECT 1 FROM pg_trigger WHERE tgname ~ '^webhook_(guard|note|drop)_' AND tgparentid = 0")
    )
    name = "a" + "-very_long" * 6
    assert await shards.begin(move("copying", name), "jane")
    assert await shards.begin(move("arriving", "it's"), "jane")
    assert triggers() == 11
    await shards.discard("it's")
    await shards.unwatch("it's")
    await shards.unwatch(name)  # its move has not ended
    assert triggers() == 9
    assert await shards.open(name, None)
    await shards.unwatch(name)
    assert triggers() == 0


async def test_figures_leave_out_copies(shards: ShardStore, store: Store) -> None:
    await claim(store, "evt_1", "evt_2")
    await claim(store, "evt_3", source="github", status=State.IGNORED)
    assert (await shards.figures()).receipts == 3
    assert await shards.begin(move("arriving"), "jane")
    assert (await shards.figures()).receipts == 1
    assert [row.phase for row in await shards.moves()] == ["arriving"]
