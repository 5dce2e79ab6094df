"""The roster on every store: live processes, the types they lease, and receipts without a handler."""

import pytest

from oncehook.model.claim import ConsumerClaim
from oncehook.model.event import MAIN
from oncehook.model.patterns import Handled, compile_pattern
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim

pytestmark = pytest.mark.anyio


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
async def test_lease_takes_only_the_types_that_the_process_handles(store: Store, pattern: str) -> None:
    claims = [
        make_claim(f"{source}:{type_}", source=source, type=type_) for source in ("a_b", "axb") for type_ in TYPES
    ]
    await store.claims.insert(claims)
    leased = await store.leases.take(100, 30, "test", handled=Handled((("a_b", pattern),)))
    expected = {type_ for type_ in TYPES if compile_pattern(pattern).fullmatch(type_)}
    assert {receipt.type for receipt in leased} == expected
    assert {receipt.source for receipt in leased} <= {"a_b"}


async def test_serial_key_is_leased_by_a_process_that_handles_its_first_event(store: Store) -> None:
    await store.claims.insert(
        [make_claim("evt_1", type="b", serial_key="k"), make_claim("evt_2", type="a", serial_key="k")]
    )
    await store.claims.insert([make_claim("evt_3", source="github", type="a", serial_key="k")])
    only_a, both = Handled((("stripe", "a"),)), Handled((("stripe", "a"), ("stripe", "b")))
    assert await store.leases.take(10, 30, "test", handled=only_a) == []
    assert [receipt.event_id for receipt in await store.leases.take(10, 30, "test", handled=both)] == ["evt_1"]


async def test_next_due_ignores_types_that_the_process_does_not_handle(store: Store) -> None:
    await store.claims.insert([make_claim("evt_1", type="a")])
    assert await store.leases.next_due(Handled((("stripe", "b"),))) is None
    assert (await store.leases.next_due(Handled((("stripe", "a"),)))) is not None


LONG_AGO = "'2026-01-01T00:00:00.000000Z'"


async def test_projection_leaves_a_type_to_a_live_handler_of_another_process(store: Store, rows: Rows) -> None:
    await store.claims.insert([make_claim("evt_1", type="bounce.hard"), make_claim("evt_2", type="delivery")])
    await store.roster.register("other", {MAIN: Handled((("stripe", "bounce"),), frozenset({"stripe"}))})
    handled = Handled(projected=frozenset({"stripe"}))
    assert [receipt.event_id for receipt in await store.leases.take(10, 30, "test", handled=handled)] == ["evt_2"]
    rows(f"UPDATE webhook_workers SET seen_at = {LONG_AGO}")
    assert [receipt.event_id for receipt in await store.leases.take(10, 30, "test", handled=handled)] == ["evt_1"]


async def test_process_is_live_for_a_minute_and_removed_after_an_hour(store: Store, rows: Rows) -> None:
    await store.roster.register("one", {MAIN: Handled((("stripe", "a"),))})
    await store.roster.register("two", {MAIN: Handled((("stripe", "b"),))})
    assert [(row.worker, row.pattern) for row in await store.roster.live_handlers()] == [("one", "a"), ("two", "b")]
    rows(f"UPDATE webhook_workers SET seen_at = {LONG_AGO} WHERE name = 'one'")
    assert [row.worker for row in await store.roster.live_handlers()] == ["two"]
    assert await store.roster.renew("one")
    assert [row.worker for row in await store.roster.live_handlers()] == ["one", "two"]
    rows(f"UPDATE webhook_workers SET seen_at = {LONG_AGO} WHERE name = 'one'")
    await store.roster.register("two", {MAIN: Handled((("stripe", "c"),))})
    assert rows("SELECT worker, pattern FROM webhook_handlers") == [("two", "c")]
    assert not await store.roster.renew("one")


async def hold(store: Store, type_: str, *, serial: bool = False) -> int:
    _, last, _ = await store.roster.waiting_types(MAIN, None, 1000, serial=serial)
    assert last is not None
    window = None, last
    held = await store.roster.hold_unhandled(MAIN, [("stripe", type_)], window, 1000, serial=serial)
    return held["stripe", type_]


@pytest.mark.parametrize("key", [None, "k"])
async def test_held_receipts_are_not_leased_until_they_are_released(store: Store, key: str | None) -> None:
    await store.claims.insert(
        [make_claim(f"evt_{n}", type="ab"[n % 2], serial_key=key and f"{key}{n}") for n in range(10)]
    )
    types, _, is_full = await store.roster.waiting_types(MAIN, None, 1000, serial=key is not None)
    assert (sorted(types), is_full) == ([("stripe", "a"), ("stripe", "b")], False)
    assert await hold(store, "a", serial=key is not None) == 5
    assert {receipt.type for receipt in await store.leases.take(100, 30, "test")} == {"b"}
    assert await store.roster.unhandled_types(MAIN, 10) == [("stripe", "a")]
    held = await store.roster.unhandled()
    assert [(row.source, row.consumer, row.number) for row in held] == [("stripe", MAIN, 5)]
    assert await store.leases.next_due() is None
    assert await store.stats.lags() == []
    assert [await store.roster.release_unhandled(MAIN, ("stripe", "a"), 3) for _ in range(3)] == [3, 2, 0]
    assert len(await store.leases.take(100, 30, "test")) == 5


@pytest.mark.parametrize("serial", [False, True])
async def test_waiting_types_are_read_window_by_window(store: Store, rows: Rows, serial: bool) -> None:
    await store.claims.insert(
        [make_claim(f"evt_{n}", type=f"t{n}", serial_key=f"k{n:02}" if serial else None) for n in range(10)]
    )
    for n in range(10):
        rows(f"UPDATE webhook_receipts SET received_at = '2026-01-01T00:00:{n:02}.000000Z' WHERE event_id = 'evt_{n}'")
    seen, after, windows = set(), None, [True]
    while windows[-1]:
        types, after, is_full = await store.roster.waiting_types(MAIN, after, 4, serial=serial)
        seen |= set(types)
        windows.append(is_full)
    assert seen == {("stripe", f"t{n}") for n in range(10)}
    assert len(windows) == 4 + 1  # a window begins with the last receipt of the window before


async def test_no_receipt_is_ignored_within_a_minute_of_a_registration(store: Store, rows: Rows) -> None:
    await store.claims.insert([make_claim("evt_1", type="a")])
    await hold(store, "a")
    await store.roster.register("new", {MAIN: Handled((("stripe", "b"),))})
    rows(f"UPDATE webhook_receipts SET unhandled_at = {LONG_AGO}")
    assert await store.roster.ignore_unhandled(MAIN, ("stripe", "a"), "why", seconds=300, size=10) == 0
    rows(f"UPDATE webhook_workers SET registered_at = {LONG_AGO}")
    assert await store.roster.ignore_unhandled(MAIN, ("stripe", "b"), "why", seconds=300, size=10) == 0
    assert await store.roster.ignore_unhandled(MAIN, ("stripe", "a"), "why", seconds=300, size=10) == 1
    assert rows("SELECT status, last_error, attempts FROM webhook_receipts") == [("ignored", "why", 0)]


async def test_only_receipts_of_one_consumer_are_released(store: Store, rows: Rows) -> None:
    await store.claims.insert([make_claim("evt_1", type="a", copies=(ConsumerClaim("ledger"),))])
    rows("UPDATE webhook_receipts SET unhandled_at = received_at RETURNING id")
    assert await store.roster.release_unhandled("ledger", ("stripe", "a"), 10) == 1
    assert [(row.consumer, row.number) for row in await store.roster.unhandled()] == [(MAIN, 1)]
