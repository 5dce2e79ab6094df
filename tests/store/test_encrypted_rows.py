"""Encrypted rows: which keys are in use, and their encryption with the first key, on both databases."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox
from oncehook.config.keyring import read_keys
from oncehook.effects.effect import Effect
from oncehook.model.effect import EffectFilter
from oncehook.model.receipt import Filter
from oncehook.store import encrypted_rows
from oncehook.store.encrypted_rows import PARTS
from oncehook.store.operator_protocols import EncryptedRowStore
from oncehook.store.store import Store
from oncehook.testing import deliver, drain
from tests.support.encryption import encrypted_inbox, ring
from tests.support.events import Rows, stripe_body
from tests.support.stores import assert_implements

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def filled(make_inbox: Callable[..., Inbox], *ids: str, events: int = 2) -> AsyncIterator[Store]:
    """A store whose every part has rows that the first of these keys encrypted."""
    inbox = encrypted_inbox(make_inbox, *ids)

    @inbox.effect(name="call")
    async def call(effect: Effect, text: str) -> None:
        raise Fail(f"no {text}")

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        await event.effect(f"call:{event.id}", "call", text=event.id)

    @inbox.on("stripe", "invoice.voided")
    async def voided(event: Event) -> None:
        raise Fail(f"no {event.id}")

    async with inbox.lifespan():
        for number in range(events):
            await deliver(inbox, "stripe", stripe_body(f"evt_{number}a"))
            await deliver(inbox, "stripe", stripe_body(f"evt_{number}b", "invoice.voided"))
        await drain(inbox)
        yield inbox._runtime.store


def use_keys(store: Store, *ids: str) -> None:
    store._keys = read_keys(ring(*ids))


async def contents(store: Store) -> list[Any]:
    """Everything that people see of the encrypted rows."""
    receipts = await store.receipts.find(Filter(), limit=1000)
    payloads = [await store.receipts.payload(row.receipt) for row in receipts]
    attempts = [await store.receipts.attempts(row.receipt) for row in receipts]
    return [receipts, payloads, attempts, await store.effects.find(EffectFilter(), limit=1000)]


async def reseal_all(store: Store) -> int:
    resealed = 0
    for part in PARTS:
        after = None
        while True:
            page = await store.encrypted_rows.reseal(part, after)
            assert page.locked == 0 and not page.unreadable
            resealed += page.resealed
            if (after := page.next) is None:
                break
    return resealed


async def test_rows_are_counted_by_table_and_key(make_inbox: Callable[..., Inbox]) -> None:
    async with filled(make_inbox, "2026a") as store:
        counts = {(use.table, use.key_id): use.number for use in await store.encrypted_rows.counts()}
    assert counts == {
        ("webhook_payloads", "2026a"): 4,
        ("webhook_receipts", "2026a"): 2,
        ("webhook_past_attempts", "2026a"): 2,
        ("webhook_effects", "2026a"): 2,
    }


async def test_every_part_is_encrypted_with_the_first_key_and_reads_the_same(
    make_inbox: Callable[..., Inbox], rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encrypted_rows, "PAGE", 2)
    async with filled(make_inbox, "2026a", events=3) as store:
        before = await contents(store)
        use_keys(store, "2026b", "2026a")
        assert await contents(store) == before
        assert await reseal_all(store) == 6 + 3 + 3 + 3
        assert await reseal_all(store) == 0, "the rows have the first key already"
        assert {use.key_id for use in await store.encrypted_rows.counts()} == {"2026b"}
        use_keys(store, "2026b")
        assert await contents(store) == before
    assert rows("SELECT DISTINCT key_id FROM webhook_payloads") == [("2026b",)]


async def test_secrets_of_sources_and_tenants_are_encrypted_with_the_first_key(store: Store, rows: Rows) -> None:
    use_keys(store, "2026a")
    source, tenant = store.keys.seal("whsec_1", "source shop"), store.keys.seal("whsec_2", "tenant shop/acme")
    empty = "('shop', 'gone', '', 2, 'jane')"
    rows(
        f"INSERT INTO webhook_sources (name, settings, secrets, revision, actor) "
        f"VALUES ('shop', '{{}}', '{source}', 1, 'jane') RETURNING 1"
    )
    rows(
        f"INSERT INTO webhook_tenants (source, tenant, secrets, revision, actor) "
        f"VALUES ('shop', 'acme', '{tenant}', 1, 'jane'), {empty} RETURNING 1"
    )
    use_keys(store, "2026b", "2026a")
    assert await reseal_all(store) == 2
    use_keys(store, "2026b")
    ((secrets, revision),) = rows("SELECT secrets, revision FROM webhook_sources")
    assert store.keys.open(secrets, "source shop") == "whsec_1" and revision == 1
    stored: dict[str, str] = dict(rows("SELECT tenant, secrets FROM webhook_tenants"))
    assert store.keys.open(stored["acme"], "tenant shop/acme") == "whsec_2" and stored["gone"] == ""


async def test_rows_of_a_missing_key_are_counted_and_left_as_they_are(make_inbox: Callable[..., Inbox]) -> None:
    async with filled(make_inbox, "2026a") as store:
        use_keys(store, "2026b")
        for part, number in (("payloads", 4), ("receipts", 2), ("attempts", 2), ("effects", 2)):
            page = await store.encrypted_rows.reseal(part)
            assert (page.resealed, dict(page.unreadable)) == (0, {"2026a": number}), part
        use_keys(store, "2026b", "2026a")
        assert await reseal_all(store) == 10


async def test_error_inside_the_text_of_an_abandoned_event_is_resealed(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    async with filled(make_inbox, "2026a", events=1) as store:
        rows("UPDATE webhook_receipts SET last_error = 'gone; the last error was: ' || last_error RETURNING 1")
        use_keys(store, "2026b", "2026a")
        await reseal_all(store)
        use_keys(store, "2026b")
        (failed,) = await store.receipts.find(Filter(status="failed"), limit=9)
        assert failed.last_error == "gone; the last error was: Fail: no evt_0b"


async def test_key_is_registered_once_and_recognized(store: Store) -> None:
    use_keys(store, "2026a")
    await store.encrypted_rows.register()
    (first,) = await store.encrypted_rows.registered()
    await store.encrypted_rows.register()
    assert await store.encrypted_rows.registered() == [first] and first.key_id == "2026a"
    assert store.encrypted_rows.is_same_key(first)
    store._keys = read_keys([ring("2026b")[0].replace("2026b", "2026a")])
    assert not store.encrypted_rows.is_same_key(first)
    await store.encrypted_rows.unregister("2026a")
    assert await store.encrypted_rows.registered() == []


async def test_store_implements_its_protocol(store: Store) -> None:
    assert_implements(store.encrypted_rows, EncryptedRowStore)
