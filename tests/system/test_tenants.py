"""The events of two tenants have nothing in common: not their ids, keys, effects, entities or serial order."""

from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from oncehook import Effect, Event, Inbox
from oncehook.testing import deliver, post
from tests.support.events import Rows, stripe_body, stripe_headers
from tests.support.waiting import eventually
from tests.support.work import receipts_are

pytestmark = pytest.mark.anyio


async def secrets_of(tenant: str) -> Sequence[str] | None:
    return [f"whsec_{tenant}"] if tenant in ("acme", "globex") else None


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_inbox()
    inbox.source("stripe", secrets_for=secrets_of)
    inbox.source("mailgun", secrets=["own"], secrets_for=secrets_of)
    async with inbox.lifespan():
        yield inbox


async def send(inbox: Inbox, tenant: str, event_id: str = "evt_1") -> tuple[int, str]:
    body = stripe_body(event_id)
    return (await post(inbox, f"stripe/{tenant}", body, stripe_headers(body, f"whsec_{tenant}"))).outcome


async def test_same_id_in_two_tenants_is_two_events(inbox: Inbox, rows: Rows) -> None:
    for tenant in ("acme", "globex"):
        assert await send(inbox, tenant) == (202, "accepted")
        assert await send(inbox, tenant) == (200, "duplicate")
    assert rows("SELECT tenant, event_id FROM webhook_receipts ORDER BY tenant") == [
        ("acme", "evt_1"),
        ("globex", "evt_1"),
    ]


async def test_unique_keys_are_unique_per_tenant(inbox: Inbox, rows: Rows) -> None:
    sent = (await deliver(inbox, "mailgun", type="delivered", tenant="acme")).sent
    assert sent is not None
    other = await deliver(inbox, "mailgun", sent.body, tenant="globex", headers=sent.headers)
    assert other.status in (200, 202) and not other.was_duplicate
    by_id = [(tenant, key) for tenant, key in rows("SELECT tenant, key FROM webhook_keys") if key.startswith("1:")]
    assert sorted(tenant for tenant, _ in by_id) == ["acme", "globex"]
    assert len({key for _, key in by_id}) == 1, "both tenants sent the same unique key"


async def test_event_names_its_tenant_and_scopes_its_effects_and_entities(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_own"], secrets_for=secrets_of)
    handled: list[tuple[str | None, bool, bool, str]] = []

    @inbox.effect
    async def send_mail(effect: Effect) -> None: ...

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        advanced = await event.advance("invoice", "in_1", version=1)
        requested = await event.effect("mail:in_1", send_mail)
        handled.append((event.tenant, advanced, requested, event.idempotency_key()))

    async with inbox.lifespan():
        for tenant in ("acme", "globex"):
            assert await send(inbox, tenant) == (202, "accepted")
        body = stripe_body("evt_1")
        assert (await post(inbox, "stripe", body, stripe_headers(body, "whsec_own"))).status == 202
        await eventually(receipts_are(rows, "processed", 3), "all events are processed")
    assert sorted((tenant or "", a, e) for tenant, a, e, _ in handled) == [
        ("", True, True),
        ("acme", True, True),
        ("globex", True, True),
    ]
    assert len({key for *_, key in handled}) == 3
    scopes = [("stripe",), ("stripe/acme",), ("stripe/globex",)]
    assert rows("SELECT scope FROM webhook_effects ORDER BY scope") == scopes
    assert rows("SELECT scope FROM webhook_entities ORDER BY scope") == scopes


async def test_serial_keys_of_tenants_do_not_mix(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_own"], secrets_for=secrets_of, serial_by="object_id")
    body = stripe_body("evt_1", data={"object": {"id": "in_1"}})
    async with inbox.lifespan():
        for path, secret in (("stripe", "own"), ("stripe/acme", "acme"), ("stripe/globex", "globex")):
            assert (await post(inbox, path, body, stripe_headers(body, f"whsec_{secret}"))).status == 202
        own = stripe_body("evt_2", data={"object": {"id": "acme/in_1"}})  # not the key of acme's in_1
        await post(inbox, "stripe", own, stripe_headers(own, "whsec_own"))
    keys = [key for (key,) in rows("SELECT serial_key FROM webhook_receipts ORDER BY id")]
    assert keys == ["/in_1", "acme/in_1", "globex/in_1", "/acme/in_1"]


async def test_operations_select_by_tenant(inbox: Inbox) -> None:
    for tenant in ("acme", "globex"):
        await send(inbox, tenant)
    found = [receipt async for receipt in inbox.events(tenant="acme")]
    assert [(receipt.tenant, receipt.as_json()["tenant"]) for receipt in found] == [("acme", "acme")]
    replayed = await inbox.replay(tenant="globex", dry_run=True)
    assert replayed.matched == 1
