"""The roster on both databases: who is live, what is leased for whom, and what waits apart."""

import asyncpg
import pytest

from oncehook.config.settings import Settings
from oncehook.model.patterns import Handled, compile_pattern
from oncehook.store import make_store, queries
from oncehook.store.pauses import handled_parameters
from oncehook.store.postgres.dialect import POSTGRES
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.servers import Postgres, ask

pytestmark = pytest.mark.anyio

LONG_AGO = "'2026-01-01T00:00:00.000000Z'"
TYPES = [
    "invoice",
    "invoice.paid",
    "invoices",
    "charge_x",
    "chargeXx",
    "a[b]",
    "ab",
    "100%",
    "100x",
    "back\\slash",
    "x*",
]
PATTERNS = [
    "invoice",
    "invoice.*",
    "*.paid",
    "charge_x",
    "charge?x",
    "a[b]",
    "100%",
    "back\\slash",
    "x*",
    "*",
    "?b",
    "[ab]*",
]


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_lease_takes_the_types_that_the_handlers_match(store: Store, pattern: str) -> None:
    claims = [
        make_claim(f"{source}:{type_}", source=source, type=type_) for source in ("a_b", "axb") for type_ in TYPES
    ]
    await store.claims.insert(claims)
    leased = await store.leases.take(100, 30, "test", handled=Handled((("a_b", pattern),)))
    expected = {type_ for type_ in TYPES if compile_pattern(pattern).fullmatch(type_)}
    assert {one.type for one in leased} == expected
    assert {one.source for one in leased} <= {"a_b"}


async def test_a_lease_of_a_serial_key_is_for_whoever_handles_its_first_event(store: Store) -> None:
    await store.claims.insert(
        [make_claim("evt_1", type="b", serial_key="k"), make_claim("evt_2", type="a", serial_key="k")]
    )
    await store.claims.insert([make_claim("evt_3", source="github", type="a", serial_key="k")])
    only_a, both = Handled((("stripe", "a"),)), Handled((("stripe", "a"), ("stripe", "b")))
    assert await store.leases.take(10, 30, "test", handled=only_a) == []
    assert [one.event_id for one in await store.leases.take(10, 30, "test", handled=both)] == ["evt_1"]


async def test_next_due_is_of_what_is_handled(store: Store) -> None:
    await store.claims.insert([make_claim("evt_1", type="a")])
    assert await store.leases.next_due(Handled((("stripe", "b"),))) is None
    assert (await store.leases.next_due(Handled((("stripe", "a"),)))) is not None


async def test_a_projection_leaves_a_type_to_a_live_handler_of_another_process(store: Store, rows: Rows) -> None:
    await store.claims.insert([make_claim("evt_1", type="bounce.hard"), make_claim("evt_2", type="delivery")])
    await store.roster.register("other", Handled((("stripe", "bounce"),), frozenset({"stripe"})))
    mine = Handled(projected=frozenset({"stripe"}))
    assert [one.event_id for one in await store.leases.take(10, 30, "test", handled=mine)] == ["evt_2"]
    rows(f"UPDATE webhook_workers SET seen_at = {LONG_AGO}")
    assert [one.event_id for one in await store.leases.take(10, 30, "test", handled=mine)] == ["evt_1"]


async def test_a_process_is_live_for_a_minute_and_forgotten_after_an_hour(store: Store, rows: Rows) -> None:
    await store.roster.register("one", Handled((("stripe", "a"),)))
    await store.roster.register("two", Handled((("stripe", "b"),)))
    assert [(row.worker, row.pattern) for row in await store.roster.live_handlers()] == [("one", "a"), ("two", "b")]
    rows(f"UPDATE webhook_workers SET seen_at = {LONG_AGO} WHERE name = 'one'")
    assert [row.worker for row in await store.roster.live_handlers()] == ["two"]
    assert await store.roster.renew("one")
    assert [row.worker for row in await store.roster.live_handlers()] == ["one", "two"]
    rows(f"UPDATE webhook_workers SET seen_at = {LONG_AGO} WHERE name = 'one'")
    await store.roster.register("two", Handled((("stripe", "c"),)))
    assert rows("SELECT worker, pattern FROM webhook_handlers") == [("two", "c")]
    assert not await store.roster.renew("one")


async def set_apart(store: Store, type_: str, *, serial: bool = False) -> int:
    _, last, _ = await store.roster.waiting_types(None, 1000, serial=serial)
    assert last is not None
    return (await store.roster.hold_unhandled([("stripe", type_)], None, last, 1000, serial=serial))["stripe", type_]


@pytest.mark.parametrize("key", [None, "k"])
async def test_what_is_set_apart_is_leased_by_nobody_until_it_is_taken_up(store: Store, key: str | None) -> None:
    await store.claims.insert(
        [make_claim(f"evt_{n}", type="ab"[n % 2], serial_key=key and f"{key}{n}") for n in range(10)]
    )
    types, _, is_full = await store.roster.waiting_types(None, 1000, serial=key is not None)
    assert (sorted(types), is_full) == ([("stripe", "a"), ("stripe", "b")], False)
    assert await set_apart(store, "a", serial=key is not None) == 5
    assert {one.type for one in await store.leases.take(100, 30, "test")} == {"b"}
    assert await store.roster.unhandled_types(10) == [("stripe", "a")]
    found = await store.roster.unhandled()
    assert (list(found), found["stripe"].number) == (["stripe"], 5)
    assert await store.leases.next_due() is None
    assert await store.stats.lags() == {}
    assert [await store.roster.release_unhandled(("stripe", "a"), 3) for _ in range(3)] == [3, 2, 0]
    assert len(await store.leases.take(100, 30, "test")) == 5


@pytest.mark.parametrize("serial", [False, True])
async def test_waiting_types_are_read_window_by_window(store: Store, rows: Rows, serial: bool) -> None:
    await store.claims.insert(
        [make_claim(f"evt_{n}", type=f"t{n}", serial_key=f"k{n:02}" if serial else None) for n in range(10)]
    )
    for n in range(10):
        rows(f"UPDATE webhook_receipts SET received_at = '2026-01-01T00:00:{n:02}.000000Z' WHERE event_id = 'evt_{n}'")
    found, after, windows = set(), None, [True]
    while windows[-1]:
        types, after, is_full = await store.roster.waiting_types(after, 4, serial=serial)
        found |= set(types)
        windows.append(is_full)
    assert found == {("stripe", f"t{n}") for n in range(10)}
    assert len(windows) == 4 + 1  # a window begins with the last one of the window before it


async def test_nothing_is_ignored_while_a_process_may_have_registered_unseen(store: Store, rows: Rows) -> None:
    await store.claims.insert([make_claim("evt_1", type="a")])
    await set_apart(store, "a")
    await store.roster.register("new", Handled((("stripe", "b"),)))
    rows(f"UPDATE webhook_receipts SET unhandled_at = {LONG_AGO}")
    assert await store.roster.ignore_unhandled(("stripe", "a"), "why", 300, 10) == 0
    rows(f"UPDATE webhook_workers SET registered_at = {LONG_AGO}")
    assert await store.roster.ignore_unhandled(("stripe", "b"), "why", 300, 10) == 0
    assert await store.roster.ignore_unhandled(("stripe", "a"), "why", 300, 10) == 1
    assert rows("SELECT status, last_error, attempts FROM webhook_receipts") == [("ignored", "why", 0)]


MANY = """
INSERT INTO webhook_receipts (id, source, provider, event_id, type, received_at, status, fingerprint)
SELECT n, CASE WHEN n % 500 = 0 THEN 'github' ELSE 'stripe' END, 'p', 'e' || n, 't',
       now() - (60000 - n) * interval '1 second',
       CASE WHEN n % 500 = 0 AND n < 40000 THEN 'processed' ELSE 'received' END,
       '\\x00' FROM generate_series(1, 50000) n
"""


async def test_a_backlog_of_another_process_is_not_passed_over_by_every_lease(postgres: Postgres) -> None:
    store = make_store(Settings(database=postgres.database(migrated=True)))
    await store.open()
    try:
        address = store.settings.database
        ask(address, MANY)
        ask(address, "ANALYZE webhook_receipts")
        mine = Handled((("github", "*"),), is_shared=True)
        assert len(await store.leases.take(1, 30, "test", handled=mine)) == 1
        text, names = queries.number_parameters(store.sql["lease"])  # type: ignore[attr-defined]
        given = {"limit": 1, "rescued": False, "worker": "w", "seconds": 30.0, "floor": store.pauses.backlog.floor}  # type: ignore[attr-defined]
        given |= handled_parameters(POSTGRES, mine)
        connection = await asyncpg.connect(address)
        rows = await connection.fetch(f"EXPLAIN (ANALYZE) {text}", *(given[name] for name in names))
        await connection.close()
    finally:
        await store.close()
    plan = "\n".join(row[0] for row in rows)
    assert "Index Scan using webhook_receipts_due" in plan, plan
    assert sum(int(line.split(":")[1]) for line in plan.splitlines() if "Rows Removed by Filter" in line) < 1500, plan


PARAMETERS = {
    "after": "-infinity", "last": "infinity", "size": 100, "source": "stripe", "key": "",
    "last_source": "z", "last_key": "",
    "types": '[{"source": "stripe", "type": "t"}]', "type": "t", "most": 10, "reason": "why", "seconds": 300.0,
}  # fmt: skip
INDEXES = {
    "waiting_types": "due", "hold_unhandled": "due", "waiting_serial_types": "serial_waiting",
    "hold_unhandled_serial": "serial_waiting", "unhandled_types": "unhandled", "release_unhandled": "unhandled",
    "ignore_unhandled": "unhandled", "unhandled": "unhandled",
}  # fmt: skip


async def test_the_statements_of_the_roster_go_by_an_index(postgres: Postgres) -> None:
    store = make_store(Settings(database=postgres.database(migrated=True)))
    await store.open()
    address = store.settings.database
    await store.close()
    ask(address, MANY)
    ask(address, "UPDATE webhook_receipts SET status = 'processed' WHERE id % 50 <> 0")
    ask(address, "UPDATE webhook_receipts SET unhandled_at = now() WHERE status = 'received' AND id % 100 = 0")
    ask(address, "UPDATE webhook_receipts SET serial_key = 'k' || id WHERE id % 150 = 0")
    ask(address, "ANALYZE webhook_receipts")
    connection = await asyncpg.connect(address)
    for name, index in INDEXES.items():
        text, names = queries.number_parameters(queries.load("postgres")[name])
        rows = await connection.fetch(f"EXPLAIN {text}", *(PARAMETERS[name] for name in names))
        plan = "\n".join(row[0] for row in rows)
        assert f"webhook_receipts_{index}" in plan and "Seq Scan on webhook_receipts" not in plan, plan
    await connection.close()
