"""What the dashboard asks of a store, on every store; and that no such question goes through the whole ledger."""

import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from oncehook.alerts.rules import RULES
from oncehook.config.settings import Settings
from oncehook.model.claim import Duplicate
from oncehook.model.lease import Settled
from oncehook.model.receipt import Filter
from oncehook.model.rows import SourceTotals
from oncehook.model.states import State
from oncehook.model.timestamps import rfc3339
from oncehook.store import make_store, queries
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.servers import ask
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_windows_follow_each_other_and_meet_every_receipt_once(store: Store) -> None:
    ids = sorted(await claim(store, *(f"evt_{n}" for n in range(25))), reverse=True)
    met, before = [], None
    for _ in range(9):
        end = await store.receipts.window_end(Filter(), before=before, size=10)
        met += [r.receipt for r in await store.receipts.find(Filter(), limit=100, before=before, down_to=end)]
        before = end
        if end is None:
            break
    assert met == ids


async def test_a_window_is_of_the_filters_time_alone(store: Store, rows: Rows) -> None:
    await claim(store, *(f"evt_{n}" for n in range(5)))
    now = await store.operations.now()
    assert await store.receipts.window_end(Filter(since=now - timedelta(hours=1)), before=None, size=5) is not None
    assert await store.receipts.window_end(Filter(until=now - timedelta(hours=1)), before=None, size=1) is None
    assert await store.receipts.window_end(Filter(source="nobody"), before=None, size=5) is not None


async def test_an_id_is_found_in_every_source_that_has_it(store: Store) -> None:
    (first,) = await claim(store, "evt_1")
    (second,) = await claim(store, "evt_1", source="other")
    await claim(store, "evt_2")
    assert {r.receipt for r in await store.receipts.by_event_id("evt_1", limit=10)} == {first, second}
    assert await store.receipts.by_event_id("evt_3", limit=10) == []
    assert await store.receipts.sources() == ["other", "stripe"]


async def test_an_empty_store_has_no_sources_and_nothing_stands(store: Store) -> None:
    assert await store.receipts.sources() == []
    assert await store.stats.source_totals(10) == SourceTotals({}, {}, {})
    assert await store.stats.rates(await store.operations.now() - timedelta(hours=1), 60) == []


async def test_rates_count_by_series_source_and_bucket(store: Store) -> None:
    first, _ = await claim(store, "evt_1", "evt_2")
    await claim(store, "evt_3", source="other")
    await store.claims.note_duplicates([Duplicate(first, None, b"", True)] * 3)
    for leased in await store.leases.take(2, 30, "w"):
        failed = Settled(leased.receipt, leased.lease, State.RETRYING, "retrying", after=60, error="E: x")
        await store.leases.settle([failed])
    await store.leases.take(1, 30, "w")
    now = await store.operations.now()
    found = await store.stats.rates(now - timedelta(hours=2), 86400)
    counted = {(row.series, row.source): row.number for row in found}
    assert counted == {
        ("received", "stripe"): 2,
        ("received", "other"): 1,
        ("duplicate", "stripe"): 3,
        ("failed", "stripe"): 2,
    }
    assert {row.bucket for row in found} <= {
        int(now.timestamp()) // 86400 * 86400,
        int(now.timestamp() - 7200) // 86400 * 86400,
    }
    fine = await store.stats.rates(now - timedelta(hours=2), 60)
    assert all(row.bucket % 60 == 0 and abs(row.bucket - now.timestamp()) < 120 for row in fine)
    assert await store.stats.rates(now + timedelta(hours=1), 60) == []


async def test_what_stands_is_counted_per_source_and_up_to_a_bound(store: Store) -> None:
    await claim(store, "a", "b", "c")
    await claim(store, "d", "e", status=State.FAILED)
    last = (await store.receipts.find(Filter(), limit=1))[0]
    found = await store.stats.source_totals(100)
    assert found.waiting == {"stripe": 3} and found.dead_letters == {"stripe": 2}
    assert found.last_received_at == {"stripe": rfc3339(last.received_at)}
    assert (await store.stats.source_totals(2)).waiting == {"stripe": 2}


async def test_the_pulse_changes_with_whatever_happens_and_else_does_not(store: Store) -> None:
    pulses = [await store.stats.change_token(), await store.stats.change_token()]
    (receipt,) = await claim(store, "evt_1")
    pulses.append(await store.stats.change_token())
    await store.claims.note_duplicates([Duplicate(receipt, None, b"", True)])
    pulses.append(await store.stats.change_token())
    (leased,) = await store.leases.take(1, 30, "w")
    await store.leases.settle([Settled(leased.receipt, leased.lease, State.PROCESSED, "processed")])
    pulses.append(await store.stats.change_token())
    await store.operations.audit("me", "test", {})
    pulses.append(await store.stats.change_token())
    assert pulses[0] == pulses[1] and len(set(pulses)) == 5


@pytest.mark.parametrize("waits", ["serial", "behind what is paused"])
async def test_the_pulse_changes_when_an_old_event_ends_well_between_two_looks(store: Store, waits: str) -> None:
    await store.claims.insert([make_claim("evt_paused", source="paused")])
    await store.pauses.pause("paused", "me")
    await store.claims.insert([make_claim("evt_old", serial_key="in_1" if waits == "serial" else None)])
    await claim(store, *(f"evt_{number:03d}" for number in range(201)), status=State.FAILED)
    before = await store.stats.change_token()
    (leased,) = await store.leases.take(1, 30, "w")
    await store.leases.settle([Settled(leased.receipt, leased.lease, State.PROCESSED, "processed")])
    assert leased.event_id == "evt_old"
    assert await store.stats.change_token() != before


async def test_the_audit_is_read_back_newest_first_in_pages(store: Store) -> None:
    for n in range(5):
        await store.operations.audit("me", "test", {"n": n, "text": "é"})
    first = await store.operations.audited(before=None, limit=3)
    second = await store.operations.audited(before=first[-1].id, limit=3)
    assert [row.detail["n"] for row in first + second] == [4, 3, 2, 1, 0]
    assert first[0].actor == "me" and first[0].detail["text"] == "é" and first[0].at.endswith("Z")


async def test_a_run_is_added_up_from_its_batches(store: Store) -> None:
    ids = await claim(store, "a", "b", "c", status=State.FAILED)
    await store.operations.audit("me", "replay_started", {"run": "r1", "matched": 3})
    await store.operations.replay(ids[:2], "me", {"run": "r1"})
    await store.operations.replay(ids[2:], "me", {"run": "r1"})
    await store.operations.audit("you", "replay_started", {"run": "r2", "matched": 9})
    rows = {row.action: row for row in await store.operations.audited_run("r1")}
    assert rows["replay"].number == 3 and json.loads(rows["replay_started"].detail or "")["matched"] == 3
    assert rows["replay_started"].actor == "me" and set(rows) == {"replay", "replay_started"}


# -- how the questions are answered ---------------------------------------------------------------------------------


@pytest.fixture
async def large(database: str) -> AsyncIterator[Store]:
    """A store with enough in it that the planner cares."""
    store = make_store(Settings(database=database))
    await store.open()
    is_sqlite = database.startswith("sqlite")
    series = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT i FROM n"
    if not is_sqlite:
        series = "SELECT i FROM generate_series(1, 20000) AS g (i)"
    at = "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || (20000 - i) || ' seconds')"
    at = at if is_sqlite else "now() - (20000 - i) * interval '1 second'"
    empty = "x''" if is_sqlite else r"'\x00'::bytea"
    ask(
        database,
        f"""INSERT INTO webhook_receipts
        (id, source, provider, event_id, type, object_id, received_at, status, fingerprint)
        SELECT i, 'stripe', 'stripe', 'evt_' || i, 'invoice.paid', 'in_' || (i / 3), {at},
               CASE WHEN i % 500 = 0 THEN 'failed' WHEN i > 19990 THEN 'received' ELSE 'processed' END, {empty}
        FROM ({series}) AS n""",
    )
    ask(
        database,
        f"""INSERT INTO webhook_deliveries (receipt_id, received_at, fingerprint, same_body)
        SELECT i, {at}, {empty}, {"1" if is_sqlite else "true"} FROM ({series}) AS n WHERE i % 10 = 0""",
    )
    ask(
        database,
        f"""INSERT INTO webhook_past_attempts (receipt_id, number, started_at, ended_at, outcome)
        SELECT i, 1, {at}, {at}, CASE WHEN i % 500 = 0 THEN 'failed' ELSE 'processed' END FROM ({series}) AS n""",
    )
    ask(
        database,
        f"""INSERT INTO webhook_entities (scope, kind, id, is_terminal, event_id, receipt_id)
        SELECT 'stripe', CASE WHEN i % 2 = 0 THEN 'invoice' ELSE 'charge' END, 'in_' || i,
               {"0" if is_sqlite else "false"}, 'evt_' || i, i FROM ({series}) AS n""",
    )
    ask(database, "ANALYZE")
    yield store
    await store.close()


PLACE = {"before_time": "2026-11-15T03:00:00.000000Z", "before_receipt": 15000}
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "the first page": ("find_receipts", {"limit": 51}),
    "a later page": ("find_receipts", {"limit": 51, **PLACE}),
    "a window": (
        "find_receipts",
        {"limit": 51, "source": "x", "type": "y", "from_time": PLACE["before_time"], "from_receipt": 9},
    ),
    "an object": ("find_receipts", {"limit": 51, "object": "in_77"}),
    "an event id": ("find_receipts", {"limit": 11, "event_id": "evt_77", "sources": ["stripe", "github"]}),
    "dead letters": ("find_receipts", {"limit": 51, "status": "failed"}),
    "the end of a window": ("window_end", {"skipped": 999, **PLACE}),
    "the sources": ("known_sources", {}),
    "the last of each source": ("last_received", {"most": 1000}),
    "what waits": ("waiting_counts", {"most": 1000}),
    "how many are dead": ("dead_letter_counts", {"most": 1000}),
    "the pulse": ("change_token", {}),
    "the first event": ("history_age", {}),
    "the attempts at an event": ("attempts", {"receipt": 77}),
    "what is known of an object": ("entities_of", {"input": '{"scope": "stripe", "id": "in_77"}'}),
    "the rates of a minute": ("rates", {"seconds": 60, "since": "now"}),
}


WHOLE = re.compile(
    r"Seq Scan on webhook_(receipts|deliveries|past_attempts|entities)|SCAN (r|d|a|e|webhook_(?!attempts$)\w+)$"
    r"|PRIMARY KEY \(rowid>\?\)|_pkey .*\n *Index Cond: \(id > 0\)",  # every row has an id above 0
    re.MULTILINE,
)
SORTED = re.compile(r"TEMP B-TREE FOR ORDER BY|-> *Sort *\(cost")


async def test_no_question_of_a_page_goes_through_the_whole_ledger(large: Store, database: str) -> None:
    for question, (name, given) in QUESTIONS.items():
        sql = queries.with_parameters(large.sql[name], set(given))  # type: ignore[attr-defined]
        plan = "\n".join(await explained(large, database, sql, given))
        assert not WHOLE.search(plan), f"{question}\n{plan}"
        if name in ("find_receipts", "window_end") and "event_id" not in given:
            assert not SORTED.search(plan), f"{question}\n{plan}"


async def test_no_rule_of_alerts_goes_through_the_whole_ledger(large: Store, database: str) -> None:
    questions = {rule.measure: {**rule.parameters} for rule in RULES} | {"abandon_inline": {"reason": "gone"}}
    for name, given in questions.items():
        given |= {"most": 1000} if "most" in given else {}
        plan = "\n".join(await explained(large, database, large.sql[name], given))  # type: ignore[attr-defined]
        assert not re.search(r"Seq Scan on webhook_receipts|SCAN webhook_receipts$", plan, re.MULTILINE), (
            f"{name}\n{plan}"
        )


async def explained(store: Any, database: str, sql: str, given: dict[str, Any]) -> list[str]:
    now = await store.operations.now()
    if database.startswith("sqlite"):
        plain = {
            name: json.dumps(v) if isinstance(v, list) else rfc3339(now) if v == "now" else v
            for name, v in given.items()
        }
        rows = await store.database.file.read(f"EXPLAIN QUERY PLAN {sql}", plain)
        return [row["detail"] for row in rows]
    times = {name: now if v == "now" or str(v).endswith("Z") else v for name, v in given.items()}
    text, names = queries.number_parameters(f"EXPLAIN {sql}")
    async with store.database.pool.connection() as connection:
        return [row[0] for row in await connection.fetch(text, *(times[name] for name in names))]
