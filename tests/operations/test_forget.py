"""Forgetting erases payloads; their events stay duplicates."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import oncehook.operations.forget as forget_module
from oncehook import Effect, Event, Fail, Inbox
from oncehook.operations.forget import BATCH, find_mentions, forget, forget_tenant, mentions
from oncehook.store.store import Store
from oncehook.testing import deliver
from tests.support.events import Rows, make_claim, stripe_body
from tests.support.payload_stores import FolderStore
from tests.support.retention import events_with_payload
from tests.support.servers import run_sql
from tests.support.stores import open_store
from tests.support.waiting import eventually
from tests.support.work import claim, receipts_are

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"email": "Jane@Example.com"}', True),
        (b'{"email": "jane\\u0040example.com"}', True),
        (b"email=jane%40example.com&x=1", True),
        (b'{"email": "mary@example.com"}', False),
        (b"\xff\xfe jane@example.com", True),
    ],
)
def test_address_is_found_in_every_encoding(body: bytes, found: bool) -> None:
    assert mentions(body, "jane@EXAMPLE.com") is found


async def test_forgotten_event_stays_a_duplicate_and_its_body_is_erased_from_disk(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    jane = stripe_body("evt_jane", customer_email="jane@example.com", note="Zanzibar-4711" * 20)
    mary = stripe_body("evt_mary", customer_email="mary@example.com")
    async with inbox.lifespan():
        for body in (jane, mary):
            await deliver(inbox, "stripe", body)
        run_sql(
            database,
            "UPDATE webhook_receipts SET object_id = 'jane@example.com', last_error = 'no Jane@Example.com here' "
            "WHERE event_id = 'evt_jane'",
        )
        found = [
            receipt async for receipt, matches in find_mentions(inbox._runtime.store, "jane@example.com") if matches
        ]
        assert await forget(inbox._runtime.store, found, actor="me@here", address="jane@example.com") == 1
        assert (await deliver(inbox, "stripe", jane)).outcome == (200, "duplicate")
        assert events_with_payload(rows) == ["evt_mary"]
        assert rows("SELECT object_id, last_error FROM webhook_receipts WHERE event_id = 'evt_jane'") == [
            (None, "(erased)")
        ]
        ((actor, action, detail),) = rows("SELECT actor, action, detail FROM webhook_audit")
        assert (actor, action) == ("me@here", "forget")
        assert json.loads(detail)["receipts"] == found and "jane" not in detail
        if database.startswith("sqlite"):
            assert_nowhere(Path(database.removeprefix("sqlite:///")), b"Zanzibar-4711", b"jane@example.com")


def assert_nowhere(file: Path, *secrets: bytes) -> None:
    for part in (file, file.with_name(file.name + "-wal")):
        content = part.read_bytes() if part.exists() else b""
        for secret in secrets:
            assert secret not in content, part


async def test_forgetting_an_object_erases_its_payloads_and_not_its_id(store: Store, rows: Rows) -> None:
    await claim(store, "evt_1", "evt_2", object_id="in_7")
    await claim(store, "evt_3", object_id="in_8")
    found = await store.retention.with_object("in_7")
    assert await forget(store, found, actor="me@here", object_id="in_7") == 2
    assert events_with_payload(rows) == ["evt_3"]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE object_id = 'in_7'") == [(2,)]
    assert await store.retention.with_object("in_7") == []


async def test_an_erasure_that_finds_nothing_is_not_audited(store: Store, rows: Rows) -> None:
    await claim(store, "evt_1", "evt_2", object_id="in_7")
    found = await store.retention.with_object("in_7")
    erased = [await forget(store, found, actor=actor, object_id="in_7") for actor in ("ann", "bob")]
    assert erased == [2, 0]
    assert rows("SELECT actor FROM webhook_audit WHERE action = 'forget'") == [("ann",)]


async def test_two_erasures_at_the_same_time_are_audited_once(store: Store, rows: Rows) -> None:
    (found,) = await claim(store, "evt_1")
    erased = await asyncio.gather(*(forget(store, [found], actor="ann") for _ in range(4)))
    assert sorted(erased) == [0, 0, 0, 1]
    assert rows("SELECT count(*) FROM webhook_audit WHERE action = 'forget'") == [(1,)]


async def test_an_erasure_of_a_receipt_without_payload_is_audited_if_it_erases_text(store: Store, rows: Rows) -> None:
    (found,) = await claim(store, "evt_1")
    assert await forget(store, [found], actor="ann") == 1
    rows("UPDATE webhook_receipts SET last_error = 'no jane@example.com here'")
    assert await forget(store, [found], actor="bob", address="jane@example.com") == 0
    assert rows("SELECT last_error FROM webhook_receipts") == [("(erased)",)]
    assert rows("SELECT actor FROM webhook_audit ORDER BY id") == [("ann",), ("bob",)]


EVERYTHING = """
SELECT 'receipt' AS kind, object_id, last_error, serial_key FROM webhook_receipts WHERE tenant = 'acme'
UNION ALL SELECT 'entity', scope, id, NULL FROM webhook_entities
UNION ALL SELECT 'effect', scope, key, args FROM webhook_effects
UNION ALL SELECT 'key', tenant, NULL, NULL FROM webhook_keys
UNION ALL SELECT 'rejection', tenant, NULL, NULL FROM webhook_rejections
ORDER BY 1, 2
"""


async def test_everything_of_a_tenant_is_erased_and_nothing_of_another(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets_for=lambda tenant: [f"whsec_{tenant}"], serial_by="object_id")

    @inbox.effect
    async def send_mail(effect: Effect, to: str) -> None: ...

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        await event.advance("invoice", event.object_id, version=1)
        await event.effect("mail", send_mail, to="jane@example.com")
        if event.id == "evt_fails":
            raise Fail("jane@example.com is unknown")

    async with inbox.lifespan():
        for tenant in ("acme", "globex"):
            for event_id in ("evt_1", "evt_fails"):
                body = stripe_body(event_id, data={"object": {"id": f"in_{event_id}"}})
                for _ in range(2):
                    assert (await deliver(inbox, "stripe", body, tenant=tenant)).status in (200, 202)
            assert (await deliver(inbox, "stripe", tenant=tenant, secret="whsec_wrong")).status == 401
            await inbox._runtime.reception.rejection_samples.stop()
        await eventually(receipts_are(rows, "failed", 2), "the failing events are dead letters")
        await eventually(receipts_are(rows, "processed", 2), "the other events are processed")
        store = inbox._runtime.store
        counts = await store.retention.tenant_counts("stripe", "acme")
        assert (counts.receipts, counts.effects, counts.entities, counts.rejections) == (2, 1, 1, 1)
        assert await forget_tenant(store, "stripe", "acme", actor="me@here") == 2
        again = await deliver(inbox, "stripe", stripe_body("evt_1", data={"object": {"id": "in_evt_1"}}), tenant="acme")
        assert again.outcome == (200, "duplicate"), "the event ids are kept"
    left = rows(EVERYTHING)
    assert [row for row in left if row[0] == "receipt"] == [
        ("receipt", None, None, None),
        ("receipt", None, "(erased)", None),
    ] or [row for row in left if row[0] == "receipt"] == [
        ("receipt", None, "(erased)", None),
        ("receipt", None, None, None),
    ]
    assert [row[:2] for row in left if row[0] != "receipt"] == [
        ("effect", "stripe/globex"),
        ("entity", "stripe/globex"),
        ("rejection", "globex"),
    ]
    assert events_with_payload(rows) == ["evt_1", "evt_fails"], "those of globex"
    texts = rows("SELECT error, traceback FROM webhook_past_attempts ORDER BY receipt_id")
    assert texts[0] == ("(erased)", None) and "jane@example.com" in texts[1][0]
    details = [json.loads(detail) for (detail,) in rows("SELECT detail FROM webhook_audit ORDER BY id")]
    assert details == [
        {"source": "stripe", "tenant": "acme", "count": 2},
        {"source": "stripe", "tenant": "acme", "state": 3},
    ]


async def test_payload_object_of_a_tenant_is_deleted_when_its_erasure_ends(database: str, tmp_path: Path) -> None:
    folder = FolderStore(tmp_path / "payloads")
    async with open_store(database, payload_store=folder.address) as store:
        addresses = {tenant: store.objects.address(b"body") for tenant in ("acme", "globex")}
        for tenant, address in addresses.items():
            event = make_claim("evt_1", tenant=tenant, body=b"", object=address)
            await store.payload_objects.reserve([(address, event)])
            await store.objects.write(address, b"body")
            await store.claims.insert([event])
        assert await forget_tenant(store, "stripe", "acme", actor="me@here") == 1
        assert list(folder.objects()) == [addresses["globex"]]


SIMILAR = ("my_shop-2", "MY_SHOP", "my-shop")
"""Other tenants, whose names a search with a pattern or without regard to case could take for `my_shop`."""


async def test_entities_that_consumers_have_of_a_tenant_are_erased(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets_for=lambda tenant: [f"whsec_{tenant}"])

    for consumer in ("main", "search"):

        @inbox.on("stripe", "*", consumer=consumer)
        async def handle(event: Event) -> None:
            await event.advance("invoice", event.object_id, version=1)

    async with inbox.lifespan():
        for tenant in ("my_shop", *SIMILAR):
            assert (await deliver(inbox, "stripe", stripe_body("evt_1"), tenant=tenant)).status == 202
        await eventually(receipts_are(rows, "processed", 8), "both consumers have handled the event of each tenant")
        store = inbox._runtime.store
        assert (await store.retention.tenant_counts("stripe", "my_shop")).entities == 2
        await forget_tenant(store, "stripe", "my_shop", actor="me@here")
    scopes = {scope for (scope,) in rows("SELECT scope FROM webhook_entities")}
    assert scopes == {f"stripe/{tenant}{consumer}" for tenant in SIMILAR for consumer in ("", "@search")}


async def test_large_tenant_is_erased_in_batches(store: Store, rows: Rows) -> None:
    await store.claims.insert([make_claim(f"evt_{number}", tenant="acme") for number in range(BATCH + 10)])
    await store.claims.insert([make_claim("evt_other", tenant="other")])
    progress: list[int] = []
    assert await forget_tenant(store, "stripe", "acme", actor="me", progress=progress.append) == BATCH + 10
    assert progress == [BATCH, BATCH + 10]
    assert events_with_payload(rows) == ["evt_other"]
    assert await forget_tenant(store, "stripe", "acme", actor="me") == 0


async def test_search_for_an_address_reads_every_page_of_payloads(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forget_module, "PAGE", 2)
    receipts = await claim(store, *(f"evt_{number}" for number in range(5)), body=b"jane@example.com")
    assert [found async for found in find_mentions(store, "jane@example.com")] == [(id, True) for id in receipts]


async def test_payloads_of_many_receipts_are_erased_in_batches_that_are_audited(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forget_module, "BATCH", 2)
    receipts = await claim(store, *(f"evt_{number}" for number in range(6)))
    assert await forget(store, receipts[:5], actor="me@here", object_id="in_1") == 5
    assert events_with_payload(rows) == ["evt_5"]
    details = [json.loads(detail) for (detail,) in rows("SELECT detail FROM webhook_audit ORDER BY id")]
    assert [detail["receipts"] for detail in details] == [receipts[:2], receipts[2:4], receipts[4:5]]
