"""Leases on SQLite."""

import sqlite3

import pytest

from oncehook.store import queries
from oncehook.store.pauses import handled_parameters
from oncehook.store.sqlite.dialect import SQLITE
from oncehook.store.store import Store
from tests.support.events import make_claim
from tests.support.stores import sqlite_of

pytestmark = pytest.mark.anyio


async def test_hot_queries_use_an_index(store: Store) -> None:
    await store.claims.insert([make_claim()])
    parameters = {
        "tenant": "acme",
        "object": "in_1",
        "limit": 50,
        "before_time": "2026",
        "before_receipt": 9,
        "receipt": 1,
    }
    parameters |= {"worker": "w", "seconds": 30, "rescued": 0, "floor": "", "after": "", "size": 9}
    parameters |= {"source": "", "key": "", "most": 9, "type": "", "types": "[]", "last": "", "reason": ""}
    parameters |= {"each": 1, "last_source": "", "last_key": "", "consumer": "main", **handled_parameters(SQLITE, None)}

    def plan(sql: str) -> str:
        with sqlite3.connect(sqlite_of(store).file.path) as connection:
            steps = " / ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters))
        connection.close()
        return steps

    find = store.sql["find_receipts"]
    before = store.sql["claimed_before"].replace("?", "'x'")
    assert (
        "USING INDEX sqlite_autoindex_webhook_receipts_1 (source=? AND event_id=? AND tenant=? AND consumer=?)"
        in plan(before)
    )
    assert "webhook_receipts_object" in plan(queries.with_parameters(find, {"object", "limit"}))
    assert "webhook_receipts_tenant" in plan(queries.with_parameters(find, {"tenant", "limit"}))
    assert "webhook_receipts_received" in plan(queries.with_parameters(find, {"limit"}))
    assert "webhook_receipts_received (received_at<?)" in plan(
        queries.with_parameters(find, {"before_receipt", "limit"})
    )
    assert "PRIMARY KEY" in plan(queries.with_parameters(find, {"receipt", "limit"}))
    for name in ("lease", "due_window"):
        assert "webhook_receipts_due (consumer=? AND <expr>>? AND <expr><?)" in plan(store.sql[name])
    for name in ("waiting_tenants", "lease_turn"):
        assert "webhook_receipts_turns (consumer=? AND source=? AND tenant" in plan(store.sql[name])
    for name in ("waiting_types", "hold_unhandled"):
        assert "webhook_receipts_due (consumer=? AND <expr>>? AND <expr><?)" in plan(store.sql[name])
    for name in ("waiting_serial_types", "hold_unhandled_serial"):
        assert "webhook_receipts_serial_waiting" in plan(store.sql[name])
    for name in ("unhandled_types", "release_unhandled", "ignore_unhandled", "unhandled"):
        assert "webhook_receipts_unhandled" in plan(store.sql[name])
        assert "SCAN webhook_receipts " not in plan(store.sql[name]).replace("SCAN webhook_receipts USING", "")
