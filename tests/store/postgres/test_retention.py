"""Retention on PostgreSQL: partitions of payloads are dropped by the day."""

import asyncio
from datetime import datetime

import asyncpg
import pytest

import oncehook.store.postgres.pool as postgres_pool
import oncehook.store.postgres.retention as postgres_retention
from oncehook.config.settings import Horizon
from oncehook.operations.prune import Pruned, cutoffs, prune
from oncehook.store.store import Store
from tests.support.ages import PARTITIONS, create_day, set_age
from tests.support.events import make_claim
from tests.support.servers import run_sql
from tests.support.stores import open_store
from tests.support.work import claim

pytestmark = pytest.mark.anyio


DAY = 86400.0

KEEP_30 = [Horizon("stripe", 30 * DAY, 30 * DAY)]


async def test_only_one_process_prunes_at_a_time(database: str) -> None:
    async with open_store(database) as store, open_store(database) as other:
        async with store.retention.start_pruning() as pruning:
            assert pruning is not None
            assert await prune(other, KEEP_30) is None, "the other process must not get the lock"
        assert await prune(other, KEEP_30) == Pruned()


async def prune_old(store: Store, horizons: list[Horizon] = KEEP_30) -> Pruned:
    """Prune with these horizons. Fails if another process has the lock."""
    pruned = await prune(store, horizons)
    assert pruned is not None
    return pruned


def days(database: str) -> set[str]:
    return {row[0] for row in run_sql(database, PARTITIONS)}


def tables(database: str) -> set[str]:
    return {
        row[0]
        for row in run_sql(database, "SELECT relname FROM pg_class WHERE relname ~ '^webhook_payloads_[0-9]{8}$'")
    }


def day_of(database: str, event_id: str) -> str:
    ((name,),) = run_sql(
        database,
        "SELECT p.tableoid::regclass::text FROM webhook_payloads p JOIN webhook_receipts r ON r.id = p.receipt_id "
        f"WHERE r.event_id = '{event_id}'",
    )
    return str(name)


async def test_day_without_needed_payloads_is_dropped(store: Store, database: str) -> None:
    await claim(store, "evt_1", "evt_2", "evt_3")
    set_age(database, "evt_1", 32, "processed")
    set_age(database, "evt_2", 33, "failed")
    set_age(database, "evt_3", 20, "processed")
    old, failed, recent = (day_of(database, f"evt_{n}") for n in (1, 2, 3))
    done = await prune_old(store)
    assert done.days == [old]
    assert old not in tables(database)
    assert {failed, recent} <= days(database)


async def test_dropped_day_deletes_no_single_payloads(store: Store, database: str) -> None:
    await claim(store, "evt_1")
    set_age(database, "evt_1", 20, "processed")
    done = await prune_old(store, [Horizon("stripe", 30 * DAY, 7 * DAY)])
    assert (len(done.days), done.payloads.total(), done.receipts.total()) == (1, 0, 0)


async def test_day_is_kept_while_one_source_needs_it(
    store: Store, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in ("short", "long"):
        await claim(store, f"evt_{source}", source=source)
        set_age(database, f"evt_{source}", 5, "processed")
    day = day_of(database, "evt_long")
    done = await prune_old(store, [Horizon("short", 30 * DAY, 2 * DAY), Horizon("long", 30 * DAY, 20 * DAY)])
    assert (done.days, done.payloads) == ([], {"short": 1})
    done = await prune_old(store, [Horizon("short", 30 * DAY, 2 * DAY), Horizon("long", 30 * DAY, 3 * DAY)])
    assert done.days == [day]


async def test_day_is_dropped_by_the_horizon_of_its_own_sources(store: Store, database: str) -> None:
    """A source without events of that day may keep its payloads for longer."""
    await claim(store, "evt_short", source="short")
    set_age(database, "evt_short", 5, "processed")
    day = day_of(database, "evt_short")
    done = await prune_old(store, [Horizon("short", 30 * DAY, 2 * DAY), Horizon("long", 30 * DAY, 20 * DAY)])
    assert done.days == [day]


REASONS: dict[str, dict[str, str]] = {
    "waiting": {"status": "received"},
    "retrying": {"status": "retrying"},
    "running": {"status": "processing"},
    "dead letter": {"status": "failed"},
    "source without a horizon": {"source": "github"},
    "source that keeps its payloads for longer": {"source": "long"},
}


@pytest.mark.parametrize("is_detached", [False, True])
@pytest.mark.parametrize("reason", REASONS)
async def test_day_with_one_needed_payload_is_kept(store: Store, database: str, reason: str, is_detached: bool) -> None:
    """Whether it is attached, or was detached by an earlier run before the payload was needed."""
    facts = {"source": "stripe", "status": "processed", **REASONS[reason]}
    await claim(store, "old")
    await claim(store, "needed", source=facts["source"])
    set_age(database, "old", 40, "processed")
    set_age(database, "needed", 40, facts["status"])
    day = day_of(database, "needed")
    if is_detached:
        run_sql(database, f"COMMENT ON TABLE {day} IS 'oncehook: to be dropped'")
        run_sql(database, f"ALTER TABLE webhook_payloads DETACH PARTITION {day}")
    done = await prune_old(store, [*KEEP_30, Horizon("long", 60 * DAY, 60 * DAY)])
    assert done.days == [] and day in days(database)
    assert day_of(database, "needed") == day
    if not is_detached:
        assert run_sql(database, f"SELECT obj_description('{day}'::regclass)") == [(None,)], "it must stay attached"


async def test_dropped_day_releases_its_own_payload_objects(store: Store, database: str) -> None:
    for name, age in (("old", 40), ("new", 20)):
        large = make_claim(name, body=b"", object=f"file:///payloads/{name}")
        await store.payload_objects.reserve([(large.object or "", large)])
        await store.claims.insert([large])
        set_age(database, name, age, "processed")
    days = "UPDATE webhook_payload_objects o SET day = p.day FROM webhook_payloads p WHERE p.receipt_id = o.receipt_id"
    run_sql(database, days)
    _, payloads = cutoffs(KEEP_30, await store.operations.now())
    async with store.retention.start_pruning() as pruning:
        assert pruning is not None and len(await pruning.drop_days(payloads)) == 1
    columns = "address, receipt_id IS NULL, day IS NULL, is_released"
    assert run_sql(database, f"SELECT {columns} FROM webhook_payload_objects ORDER BY address") == [
        ("file:///payloads/new", False, False, False),
        ("file:///payloads/old", True, True, True),
    ]


async def test_tables_that_the_pruner_did_not_make_are_kept(store: Store, database: str) -> None:
    """A partition with another name, and the detached day of an inbox in another schema."""
    run_sql(
        database,
        "CREATE TABLE payloads_of_2019 PARTITION OF webhook_payloads FOR VALUES FROM ('2019-01-01') TO ('2020-01-01')",
    )
    run_sql(database, "CREATE SCHEMA other")
    run_sql(database, "CREATE TABLE other.webhook_payloads_20200101 (LIKE webhook_payloads INCLUDING ALL)")
    run_sql(database, "COMMENT ON TABLE other.webhook_payloads_20200101 IS 'oncehook: to be dropped'")
    assert (await prune_old(store)).days == []
    tables = "SELECT to_regclass('payloads_of_2019'), to_regclass('other.webhook_payloads_20200101')"
    assert None not in run_sql(database, tables)[0]


async def test_open_reader_delays_the_drop_of_a_day_but_no_claim(
    store: Store, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The detach times out and stays pending. Claims, leases and reads continue. The next prune finishes it."""
    monkeypatch.setattr(postgres_retention, "DETACH_SECONDS", 1.0)
    await claim(store, "evt_1", "evt_2")
    set_age(database, "evt_1", 40, "processed")
    set_age(database, "evt_2", 3, "failed")
    day = day_of(database, "evt_1")
    reader = await asyncpg.connect(database)
    await reader.execute("BEGIN")
    assert await reader.fetchval("SELECT count(*) FROM webhook_payloads") == 2
    pruning = asyncio.create_task(prune(store, KEEP_30))
    accepted = 0
    while not pruning.done():
        async with asyncio.timeout(1.0):
            (claimed,) = await store.claims.insert([make_claim(f"new_{accepted}")])
            (leased,) = await store.leases.take(1, 30, "me")
            assert claimed.fresh and leased.body is not None
            assert await store.receipts.payload(claimed.receipt) is not None
        accepted += 1
    done = await pruning
    assert accepted > 10
    assert done is not None and done.days == [] and done.receipts == {"stripe": 1}
    assert run_sql(database, "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhdetachpending") == [(day,)]

    await reader.execute("ROLLBACK")
    await reader.close()
    done = await prune_old(store)
    assert done.days == [day] and day not in tables(database)


async def test_day_that_was_detached_before_a_crash_is_dropped(store: Store, database: str) -> None:
    day = create_day(database, datetime(2020, 1, 1).date())
    run_sql(database, f"COMMENT ON TABLE {day} IS 'oncehook: to be dropped'")
    run_sql(database, f"ALTER TABLE webhook_payloads DETACH PARTITION {day}")
    assert (await prune_old(store)).days == [day]
    assert day not in tables(database)


async def test_day_that_a_person_detached_is_kept(store: Store, database: str) -> None:
    day = create_day(database, datetime(2020, 1, 1).date())
    run_sql(database, f"ALTER TABLE webhook_payloads DETACH PARTITION {day}")
    assert (await prune_old(store)).days == []
    assert day in tables(database)


async def test_partitions_are_created_while_a_detach_is_pending(
    store: Store, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_retention, "DETACH_SECONDS", 0.5)
    create_day(database, datetime(2020, 1, 1).date())
    reader = await asyncpg.connect(database)
    await reader.execute("BEGIN")
    await reader.fetch("SELECT 1 FROM webhook_payloads")
    assert (await prune_old(store)).days == []
    before = days(database)
    monkeypatch.setattr(postgres_pool, "DAYS_AHEAD", postgres_pool.DAYS_AHEAD + 1)
    assert (await prune_old(store)).days == []
    assert len(days(database) - before) == 1
    await reader.execute("ROLLBACK")
    await reader.close()
    assert (await prune_old(store)).days == ["webhook_payloads_20200101"]


async def test_prune_creates_the_partitions_of_the_coming_week(store: Store, database: str) -> None:
    last = max(days(database))
    run_sql(database, f"DROP TABLE {last}")
    await prune_old(store)
    assert last in days(database)
