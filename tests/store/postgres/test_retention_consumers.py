"""Retention on PostgreSQL of events with several consumers: days, locks and plans."""

import json
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from oncehook.model.claim import ConsumerClaim
from oncehook.operations.prune import cutoffs
from oncehook.store import queries
from oncehook.store.postgres.retention import PostgresPruning
from oncehook.store.rows import Cutoffs
from oncehook.store.store import Store
from tests.support.ages import PARTITIONS, create_day, set_age, set_status
from tests.support.retention import KEEP_30, prune_now
from tests.support.servers import run_sql
from tests.support.work import claim

pytestmark = pytest.mark.anyio

COPIES = (ConsumerClaim("analytics"), ConsumerClaim("ledger"))


async def test_day_of_payloads_stays_while_one_consumer_may_need_it(store: Store, database: str) -> None:
    await claim(store, "evt_1", copies=COPIES)
    set_age(database, "evt_1", 40, "processed")
    set_status(database, "evt_1", "ledger", "retrying")
    day = create_day(database, (datetime.now(UTC) - timedelta(days=40)).date())
    assert (await prune_now(store)).days == []
    assert (day,) in run_sql(database, PARTITIONS)
    set_status(database, "evt_1", "ledger", "processed")
    assert (await prune_now(store)).days == [day]


async def test_day_that_a_replay_or_a_backfill_needs_while_it_is_dropped_is_attached_again(
    store: Store, database: str
) -> None:
    await claim(store, "evt_1", "evt_2", copies=COPIES)
    for event_id in ("evt_1", "evt_2"):
        set_age(database, event_id, 40, "processed")
    _, payloads = cutoffs(KEEP_30, await store.operations.now())
    async with store.retention.start_pruning() as pruning:
        assert isinstance(pruning, PostgresPruning)
        is_droppable = pruning._is_droppable

        async def replay_after(row: Any, today: date, payloads: Cutoffs) -> bool:
            result = await is_droppable(row, today, payloads)
            if result:
                set_status(database, "evt_1", "ledger", "received")
            return result

        pruning._is_droppable = replay_after  # type: ignore[method-assign]
        assert await pruning.drop_days(payloads) == []
    (leased,) = await store.leases_of("ledger").take(10, 30, "worker-1")
    assert leased.event_id == "evt_1" and leased.body is not None
    set_status(database, "evt_1", "ledger", "processed")
    assert len((await prune_now(store)).days) == 1
    assert run_sql(database, "SELECT count(*) FROM webhook_payloads") == [(0,)]


async def test_event_is_kept_while_another_session_changes_the_receipt_of_one_consumer(
    store: Store, database: str
) -> None:
    await claim(store, "evt_1", "evt_2", copies=COPIES)
    for event_id in ("evt_1", "evt_2"):
        set_age(database, event_id, 40, "processed")
    receipts, _ = cutoffs(KEEP_30, await store.operations.now())
    connection = await asyncpg.connect(database)
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "UPDATE webhook_receipts SET status = 'received' WHERE event_id = 'evt_1' AND consumer = 'ledger'"
        )
        async with store.retention.start_pruning() as pruning:
            assert pruning is not None
            counts, _ = await pruning.prune_receipts(receipts, None, 100)
        await transaction.commit()
    finally:
        await connection.close()
    assert counts == {"stripe": 3}
    assert run_sql(database, "SELECT DISTINCT event_id FROM webhook_receipts") == [("evt_1",)]
    assert run_sql(database, "SELECT count(*) FROM webhook_payloads") == [(1,)]


async def test_copies_of_old_receipts_are_found_by_their_index(database: str) -> None:
    run_sql(
        database,
        """INSERT INTO webhook_receipts
            (id, main_id, consumer, source, provider, event_id, status, fingerprint, received_at)
        SELECT n + c * 10000, CASE WHEN c > 0 THEN n END, (ARRAY['main', 'ledger'])[c + 1], 'stripe', 'stripe',
               'evt_' || n, 'processed', '\\x00', now() - n * interval '1 minute'
        FROM generate_series(1, 10000) n, generate_series(0, 1) c""",
    )
    run_sql(database, "ANALYZE webhook_receipts")
    parameters = {
        "before": json.dumps([{"source": "stripe", "before": "2100-01-01T00:00:00Z"}]),
        "latest": datetime(2100, 1, 1, tzinfo=UTC),
        "after_time": datetime(1970, 1, 1, tzinfo=UTC),
        "after_receipt": 0,
        "receipts": "{1,2,3}",
        "limit": 500,
    }
    connection = await asyncpg.connect(database)
    try:
        for name in ("old_receipts", "copies", "receipts_of_events"):
            text, names = queries.number_parameters(queries.load("postgres")[name])
            rows = await connection.fetch(f"EXPLAIN {text}", *(parameters[each] for each in names))
            plan = "\n".join(row[0] for row in rows)
            assert re.search(r"using webhook_receipts_main .*\n *Index Cond: \(main_id = ", plan), f"{name}\n{plan}"
    finally:
        await connection.close()
