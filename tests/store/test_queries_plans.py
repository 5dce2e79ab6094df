"""Query plans: no query of the dashboard, of alerts, of due times or of a hot path scans a whole table."""

import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pytest

from oncehook.alerts.rules import RULES
from oncehook.config.settings import Settings
from oncehook.model.timestamps import rfc3339
from oncehook.store import make_store, queries
from oncehook.store.store import Store
from tests.support.servers import Postgres, run_sql
from tests.support.stores import postgres_of, sqlite_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def large(database: str) -> AsyncIterator[Store]:
    """A store with enough rows that the planner prefers indexes."""
    store = make_store(Settings(database=database))
    await store.open()
    is_sqlite = database.startswith("sqlite")
    series = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT i FROM n"
    if not is_sqlite:
        series = "SELECT i FROM generate_series(1, 20000) AS g (i)"
    at = "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || (20000 - i) || ' seconds')"
    at = at if is_sqlite else "now() - (20000 - i) * interval '1 second'"
    empty = "x''" if is_sqlite else r"'\x00'::bytea"
    run_sql(
        database,
        f"""INSERT INTO webhook_receipts
        (id, source, provider, event_id, type, object_id, received_at, status, fingerprint)
        SELECT i, 'stripe', 'stripe', 'evt_' || i, 'invoice.paid', 'in_' || (i / 3), {at},
               CASE WHEN i % 500 = 0 THEN 'failed' WHEN i > 19990 THEN 'received' ELSE 'processed' END, {empty}
        FROM ({series}) AS n""",
    )
    run_sql(
        database,
        f"""INSERT INTO webhook_deliveries (receipt_id, received_at, fingerprint, same_body)
        SELECT i, {at}, {empty}, {"1" if is_sqlite else "true"} FROM ({series}) AS n WHERE i % 10 = 0""",
    )
    run_sql(
        database,
        f"""INSERT INTO webhook_past_attempts (receipt_id, number, started_at, ended_at, outcome)
        SELECT i, 1, {at}, {at}, CASE WHEN i % 500 = 0 THEN 'failed' ELSE 'processed' END FROM ({series}) AS n""",
    )
    run_sql(
        database,
        f"""INSERT INTO webhook_entities (scope, kind, id, is_terminal, event_id, receipt_id)
        SELECT 'stripe', CASE WHEN i % 2 = 0 THEN 'invoice' ELSE 'charge' END, 'in_' || i,
               {"0" if is_sqlite else "false"}, 'evt_' || i, i FROM ({series}) AS n""",
    )
    run_sql(database, "ANALYZE")
    yield store
    await store.close()


POSITION = {"before_time": "2026-11-15T03:00:00.000000Z", "before_receipt": 15000}

QUERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "the first page": ("find_receipts", {"limit": 51}),
    "a later page": ("find_receipts", {"limit": 51, **POSITION}),
    "a window": (
        "find_receipts",
        {"limit": 51, "source": "x", "type": "y", "from_time": POSITION["before_time"], "from_receipt": 9},
    ),
    "an object": ("find_receipts", {"limit": 51, "object": "in_77"}),
    "an event id": ("find_receipts", {"limit": 11, "event_id": "evt_77", "sources": ["stripe", "github"]}),
    "dead letters": ("find_receipts", {"limit": 51, "status": "failed"}),
    "the end of a window": ("window_end", {"skipped": 999, **POSITION}),
    "the sources": ("known_sources", {}),
    "the last of each source": ("last_received", {"most": 1000}),
    "waiting events": ("waiting_counts", {"most": 1000}),
    "the number of dead letters": ("dead_letter_counts", {"most": 1000}),
    "the change token": ("change_token", {}),
    "the first event": ("history_age", {}),
    "receipts of a clock that was ahead": ("receipts_scheduled_ahead", {"limit": 1000}),
    "effects of a clock that was ahead": ("effects_scheduled_ahead", {"limit": 1000}),
    "the attempts at an event": ("attempts", {"receipt": 77}),
    "the consumers of an event": ("consumers_of_event", {"main": 77}),
    "the entities of an object": ("entities_of", {"input": '{"scope": "stripe", "id": "in_77"}'}),
    "the rates of a minute": ("rates", {"seconds": 60, "since": "now"}),
}

FULL_SCAN = re.compile(
    r"Seq Scan on webhook_(receipts|deliveries|past_attempts|entities)|SCAN (r|d|a|e|webhook_(?!attempts$)\w+)$"
    r"|PRIMARY KEY \(rowid>\?\)|_pkey .*\n *Index Cond: \(id > 0\)",  # every row has an id above 0
    re.MULTILINE,
)

SORT = re.compile(r"TEMP B-TREE FOR ORDER BY|-> *Sort *\(cost")


async def explain(store: Any, database: str, sql: str, parameters: dict[str, Any]) -> list[str]:
    now = await store.operations.now()
    if database.startswith("sqlite"):
        plain = {
            name: json.dumps(v) if isinstance(v, list) else rfc3339(now) if v == "now" else v
            for name, v in parameters.items()
        }
        rows = await sqlite_of(store).file.read(f"EXPLAIN QUERY PLAN {sql}", plain)
        return [row["detail"] for row in rows]
    times = {name: now if v == "now" or str(v).endswith("Z") else v for name, v in parameters.items()}
    text, names = queries.number_parameters(f"EXPLAIN {sql}")
    async with postgres_of(store).pool.connection() as connection:
        return [row[0] for row in await connection.fetch(text, *(times[name] for name in names))]


async def test_no_dashboard_query_scans_a_whole_table(large: Store, database: str) -> None:
    for purpose, (name, parameters) in QUERIES.items():
        sql = queries.with_parameters(large.sql[name], set(parameters))
        plan = "\n".join(await explain(large, database, sql, parameters))
        assert not FULL_SCAN.search(plan), f"{purpose}\n{plan}"
        if name in ("find_receipts", "window_end") and "event_id" not in parameters:
            assert not SORT.search(plan), f"{purpose}\n{plan}"


async def test_no_alert_rule_scans_all_receipts(large: Store, database: str) -> None:
    measured = {rule.measure: {**rule.parameters} for rule in RULES} | {"abandon_inline": {"reason": "gone"}}
    for name, parameters in measured.items():
        parameters |= {"most": 1000} if "most" in parameters else {}
        plan = "\n".join(await explain(large, database, large.sql[name], parameters))
        assert not re.search(r"Seq Scan on webhook_receipts|SCAN webhook_receipts$", plan, re.MULTILINE), (
            f"{name}\n{plan}"
        )


@pytest.fixture
def address(postgres: Postgres) -> str:
    return postgres.database(migrated=True)


@pytest.fixture
async def store(address: str) -> AsyncIterator[Store]:
    store = make_store(Settings(database=address))
    await store.open()
    yield store
    await store.close()


MANY = """
INSERT INTO webhook_receipts (id, source, provider, event_id, type, object_id, status, fingerprint, received_at)
SELECT nextval('webhook_receipt_ids'), 'stripe', 'stripe', 'old_' || n, 'invoice.paid', 'in_' || n, 'received', '\\x00',
       now() - n * interval '1 second'
FROM generate_series(1, 5000) n
"""


async def plan(address: str, sql: str, *values: object) -> str:
    connection = await asyncpg.connect(address)
    try:
        return "\n".join(row[0] for row in await connection.fetch(f"EXPLAIN {sql}", *values))
    finally:
        await connection.close()


async def find_plan(address: str, **parameters: object) -> str:
    sql = queries.with_parameters(queries.load("postgres")["find_receipts"], set(parameters))
    text, names = queries.number_parameters(sql)
    return await plan(address, text, *(parameters[name] for name in names))


async def test_hot_queries_use_an_index_on_postgresql(store: Store, address: str) -> None:
    run_sql(address, MANY)
    run_sql(address, "ANALYZE webhook_receipts")
    plans = {
        "webhook_receipts_once": await plan(
            address, store.sql["claimed_before"], ["stripe"] * 3, ["old_7", "old_8", "new"], True, [""] * 3
        ),
        "webhook_receipts_object": await find_plan(address, object="in_7", limit=50),
        "webhook_receipts_tenant": await find_plan(address, tenant="acme", limit=50),
        "webhook_receipts_received": await find_plan(address, limit=50),
        "webhook_receipts_pkey": await find_plan(address, receipt=7, limit=1),
    }
    plans["webhook_receipts_received "] = await find_plan(
        address, before_time=datetime.now(UTC), before_receipt=99, limit=50
    )
    lease, names = queries.number_parameters(queries.statement("postgres", "lease", frozenset()))
    parameters = {"seconds": 30.0, "worker": "w", "rescued": False, "floor": "-infinity", "limit": 16}
    parameters |= {"consumer": "main", "handled": ["stripe %"], "projected": []}
    plans["webhook_receipts_due"] = await plan(address, lease, *(parameters[name] for name in names))
    parameters |= {"keys": '[{"source": "stripe", "key": "acme"}]', "each": 4}
    parameters |= {"source": "stripe", "key": "acme", "most": 16}
    for name in ("lease_turn", "waiting_tenants"):
        text, names = queries.number_parameters(queries.statement("postgres", name, frozenset()))
        plans["webhook_receipts_turns".ljust(23 + len(name))] = await plan(
            address, text, *(parameters[name] for name in names)
        )
    for index, text in plans.items():
        assert index.strip() in text, text
        assert not re.search(r"Seq Scan on webhook_receipts", text), text
