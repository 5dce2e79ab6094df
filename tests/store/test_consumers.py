"""Consumers in the database: durable subscriptions, and receipts of several consumers of one event."""

import json

import pytest

from oncehook.model.claim import ConsumerClaim
from oncehook.model.states import State
from oncehook.store.store import Store
from tests.support.events import Rows, make_claim
from tests.support.stores import event_ids, processed, settle

pytestmark = pytest.mark.anyio

RECEIPTS = "SELECT consumer, status, serial_key, main_id FROM webhook_receipts ORDER BY id"
COPIES = (ConsumerClaim("analytics", State.IGNORED, "not needed"), ConsumerClaim("ledger", serial_key="in_1"))


async def subscriptions(store: Store) -> dict[tuple[str, str], tuple[list[str], dict[str, object]]]:
    return {(r.name, r.source): (json.loads(r.patterns), json.loads(r.settings)) for r in await store.consumers.all()}


async def test_registration_adds_patterns_and_replaces_settings(store: Store) -> None:
    key = ("ledger", "stripe")
    assert await store.consumers.register({key: ["invoice.*"]}, {"ledger": {"rate": 5.0}})
    assert await store.consumers.register({key: ["charge.*"]}, {"ledger": {}})
    assert await subscriptions(store) == {key: (["charge.*", "invoice.*"], {})}


async def test_renewal_keeps_the_settings_of_a_process_that_started_later(store: Store) -> None:
    key = ("ledger", "stripe")
    await store.consumers.register({key: ["invoice.*"]}, {"ledger": {"rate": 5.0}})
    await store.consumers.register({key: ["invoice.*"]}, {"ledger": {"rate": 9.0}})
    assert not await store.consumers.register({key: ["invoice.*"]}, {"ledger": {"rate": 5.0}}, overwrite=False)
    assert await subscriptions(store) == {key: (["invoice.*"], {"rate": 9.0})}
    other = ("ledger", "github")
    assert await store.consumers.register({other: ["push"]}, {"ledger": {"rate": 5.0}}, overwrite=False)
    assert (await subscriptions(store))[other] == (["push"], {"rate": 5.0}), "a new subscription needs its settings"


async def test_patterns_of_main_are_no_subscription(store: Store) -> None:
    await store.consumers.register({("main", "stripe"): ["invoice.*"], ("ledger", "stripe"): ["*"]}, {})
    assert [row.name for row in await store.consumers.all()] == ["ledger"]
    assert [(row.name, row.patterns) for row in await store.consumers.of_main()] == [("main", '["invoice.*"]')]


async def test_registration_without_a_change_is_seen_and_keeps_the_revision(store: Store, rows: Rows) -> None:
    await store.consumers.register({("ledger", "stripe"): ["*"]}, {})
    before = await store.directory.revision()
    rows("UPDATE webhook_consumers SET seen_at = '2026-01-01T00:00:00.000000Z'")
    assert not await store.consumers.register({("ledger", "stripe"): ["*"]}, {})
    assert await store.directory.revision() == before
    assert (await store.consumers.all())[0].seen_at > "2026-02"


async def test_only_the_consumers_of_a_process_are_seen_when_it_registers(store: Store, rows: Rows) -> None:
    await store.consumers.register({("ledger", "stripe"): ["*"], ("search", "stripe"): ["*"]}, {})
    rows("UPDATE webhook_consumers SET seen_at = '2026-01-01T00:00:00.000000Z'")
    assert await store.consumers.register({("ledger", "stripe"): ["invoice.*"]}, {})
    seen = {row.name: row.seen_at > "2026-02" for row in await store.consumers.all()}
    assert seen == {"ledger": True, "search": False}
    revisions: dict[str, int] = dict(rows("SELECT name, revision FROM webhook_consumers"))
    assert revisions["ledger"] == await store.directory.revision() > revisions["search"]


async def test_claim_writes_the_receipts_of_all_consumers_once(store: Store, rows: Rows) -> None:
    claim = make_claim("evt_1", copies=COPIES)
    first, again = [(await store.claims.insert([claim]))[0] for _ in range(2)]
    assert (first.fresh, again.fresh, again.receipt) == (True, False, first.receipt)
    main = first.receipt
    assert [tuple(row) for row in rows(RECEIPTS)] == [
        ("main", "received", None, None),
        ("analytics", "ignored", None, main),
        ("ledger", "received", "in_1", main),
    ]
    assert rows("SELECT count(*) FROM webhook_payloads")[0][0] == 1, "the payload must be stored once"


async def test_each_consumer_leases_its_own_receipt_with_the_payload(store: Store) -> None:
    await store.claims.insert([make_claim(f"evt_{n}", copies=(ConsumerClaim("ledger"),)) for n in range(3)])
    ledger = store.leases_of("ledger")
    leased = await ledger.take(10, 30, "w")
    assert [(one.event_id, one.consumer, one.body) for one in leased] == [
        (f"evt_{n}", "ledger", make_claim(f"evt_{n}").body) for n in range(3)
    ]
    assert len(await store.leases.take(10, 30, "w")) == 3, "the receipts of main must still be due"
    assert await store.leases_of("another").take(10, 30, "w") == []
    assert await ledger.next_due() is None


async def test_serial_key_of_one_consumer_does_not_hold_another(store: Store) -> None:
    copies = (ConsumerClaim("ledger", serial_key="a"),)
    await store.claims.insert([make_claim(f"evt_{n}", serial_key="a", copies=copies) for n in range(2)])
    assert [one.event_id for one in await store.leases.take(10, 30, "w")] == ["evt_0"]
    assert [one.event_id for one in await store.leases_of("ledger").take(10, 30, "w")] == ["evt_0"]


async def test_dead_letter_of_one_consumer_does_not_hold_the_key_of_another(store: Store) -> None:
    copies = (ConsumerClaim("ledger", serial_key="a"),)
    await store.claims.insert([make_claim(f"evt_{n}", serial_key="a", copies=copies) for n in range(2)])
    ledger = store.leases_of("ledger")
    await settle(store, await store.leases.take(10, 30, "w"), State.FAILED)
    await settle(store, await ledger.take(10, 30, "w"))
    assert event_ids(await ledger.take(10, 30, "w")) == ["evt_1"]
    assert await store.leases.take(10, 30, "w") == [], "main's own dead letter holds its key"


async def test_dead_letter_of_a_consumer_holds_its_own_key(store: Store) -> None:
    copies = (ConsumerClaim("ledger", serial_key="a"),)
    await store.claims.insert([make_claim(f"evt_{n}", copies=copies) for n in range(2)])
    ledger = store.leases_of("ledger")
    await settle(store, await ledger.take(10, 30, "w"), State.FAILED)
    assert await ledger.take(10, 30, "w") == [], "a later event of the key would overtake the dead letter"


async def test_copies_of_a_key_are_leased_in_the_order_of_arrival(store: Store) -> None:
    copies = (ConsumerClaim("ledger", serial_key="a"),)
    await store.claims.insert([make_claim(f"evt_{9 - n}", copies=copies) for n in range(5)])
    ledger = store.leases_of("ledger")
    handled = []
    while leased := await ledger.take(10, 30, "w"):
        (one,) = leased
        handled.append(one.event_id)
        await store.leases.settle([processed(one)])
    assert handled == ["evt_9", "evt_8", "evt_7", "evt_6", "evt_5"]


async def test_paused_consumer_is_not_leased_and_the_others_are(store: Store) -> None:
    await store.claims.insert([make_claim("evt_1", copies=(ConsumerClaim("ledger"),))])
    assert await store.pauses.pause("", "me", consumer="ledger")
    assert await store.leases_of("ledger").take(10, 30, "w") == []
    assert len(await store.leases.take(10, 30, "w")) == 1
    assert await store.pauses.resume("", "me", consumer="ledger")
    assert len(await store.leases_of("ledger").take(10, 30, "w")) == 1


async def test_strays_of_one_consumer_are_released_without_those_of_another(store: Store) -> None:
    await store.claims.insert([make_claim("evt_1", copies=(ConsumerClaim("ledger"),))])
    ledger = store.leases_of("ledger")
    await store.leases.take(1, 30, "w")
    await ledger.take(1, 30, "w")
    assert await ledger.release_strays("w", []) == 1
    assert await store.leases.take(1, 30, "w") == [], "main's lease must be kept"
