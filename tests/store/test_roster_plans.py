"""Query plans of the roster on PostgreSQL."""

import asyncpg
import pytest

from oncehook.config.settings import Settings
from oncehook.model.patterns import Handled
from oncehook.store import make_store, queries
from oncehook.store.pauses import handled_parameters
from oncehook.store.postgres.dialect import POSTGRES
from tests.support.servers import Postgres, run_sql

pytestmark = pytest.mark.anyio


MANY = """
INSERT INTO webhook_receipts (id, source, provider, event_id, type, received_at, status, fingerprint)
SELECT n, CASE WHEN n % 500 = 0 THEN 'github' ELSE 'stripe' END, 'p', 'e' || n, 't',
       now() - (60000 - n) * interval '1 second',
       CASE WHEN n % 500 = 0 AND n < 40000 THEN 'processed' ELSE 'received' END,
       '\\x00' FROM generate_series(1, 50000) n
"""


async def test_lease_does_not_read_the_backlog_of_another_process(postgres: Postgres) -> None:
    store = make_store(Settings(database=postgres.database(migrated=True)))
    await store.open()
    try:
        address = store.settings.database
        run_sql(address, MANY)
        run_sql(address, "ANALYZE webhook_receipts")
        handled = Handled((("github", "*"),), is_shared=True)
        assert len(await store.leases.take(1, 30, "test", handled=handled)) == 1
        text, names = queries.number_parameters(queries.statement("postgres", "lease", frozenset()))
        parameters = {"limit": 1, "rescued": False, "worker": "w", "seconds": 30.0, "floor": store.pauses.backlog.floor}  # type: ignore[attr-defined]
        parameters |= {"consumer": "main", **handled_parameters(POSTGRES, handled)}
        connection = await asyncpg.connect(address)
        rows = await connection.fetch(f"EXPLAIN (ANALYZE) {text}", *(parameters[name] for name in names))
        await connection.close()
    finally:
        await store.close()
    plan = "\n".join(row[0] for row in rows)
    assert "Index Scan using webhook_receipts_due" in plan, plan
    assert sum(int(line.split(":")[1]) for line in plan.splitlines() if "Rows Removed by Filter" in line) < 1500, plan


PARAMETERS = {
    "after": "-infinity", "last": "infinity", "size": 100, "source": "stripe", "key": "",
    "last_source": "z", "last_key": "", "consumer": "main",
    "types": '[{"source": "stripe", "type": "t"}]', "type": "t", "most": 10, "reason": "why", "seconds": 300.0,
}  # fmt: skip

INDEXES = {
    "waiting_types": "due", "hold_unhandled": "due", "waiting_serial_types": "serial_waiting",
    "hold_unhandled_serial": "serial_waiting", "unhandled_types": "unhandled", "release_unhandled": "unhandled",
    "ignore_unhandled": "unhandled", "unhandled": "unhandled",
}  # fmt: skip


async def test_roster_statements_use_an_index(postgres: Postgres) -> None:
    store = make_store(Settings(database=postgres.database(migrated=True)))
    await store.open()
    address = store.settings.database
    await store.close()
    run_sql(address, MANY)
    run_sql(address, "UPDATE webhook_receipts SET status = 'processed' WHERE id % 50 <> 0")
    run_sql(address, "UPDATE webhook_receipts SET unhandled_at = now() WHERE status = 'received' AND id % 100 = 0")
    run_sql(address, "UPDATE webhook_receipts SET serial_key = 'k' || id WHERE id % 150 = 0")
    run_sql(address, "ANALYZE webhook_receipts")
    connection = await asyncpg.connect(address)
    for name, index in INDEXES.items():
        text, names = queries.number_parameters(queries.load("postgres")[name])
        rows = await connection.fetch(f"EXPLAIN {text}", *(PARAMETERS[name] for name in names))
        plan = "\n".join(row[0] for row in rows)
        assert f"webhook_receipts_{index}" in plan and "Seq Scan on webhook_receipts" not in plan, plan
    await connection.close()
