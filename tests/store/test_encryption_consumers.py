"""Encrypted events of several consumers and tenants, and filters whose reasons show a part of the payload."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox
from oncehook.config.keyring import KeyWrong
from oncehook.model.receipt import Filter
from oncehook.runtime.managed_changes import SourceChanges
from oncehook.testing import deliver, drain
from tests.support.encryption import assert_stored_nowhere, encrypted_inbox, ring
from tests.support.events import Rows, stripe_body
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

MARKER = "Markertext"


async def test_each_consumer_gets_the_decrypted_payload_and_has_an_encrypted_error(
    make_inbox: Callable[..., Inbox], database: str
) -> None:
    inbox = encrypted_inbox(make_inbox)
    seen: list[Any] = []

    @inbox.on("stripe", "*")
    async def main(event: Event) -> None:
        seen.append(("main", event["note"]))

    @inbox.on("stripe", "*", consumer="ledger")
    async def ledger(event: Event) -> None:
        seen.append(("ledger", event["note"]))
        raise Fail(event["note"])

    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1", note=MARKER))
        await drain(inbox)
        assert sorted(seen) == [("ledger", MARKER), ("main", MARKER)]
        (failed,) = await inbox._runtime.store.receipts.find(Filter(consumer="ledger"), limit=9)
        assert failed.last_error == f"Fail: {MARKER}"
        (attempt,) = await inbox._runtime.store.receipts.attempts(failed.receipt)
        assert attempt.error == f"Fail: {MARKER}"
        payload = await inbox._runtime.store.receipts.payload(failed.receipt)
        assert payload is not None and payload.body == stripe_body("evt_1", note=MARKER)
    assert_stored_nowhere(database, MARKER)


async def test_reason_of_a_filter_is_encrypted(make_inbox: Callable[..., Inbox], database: str) -> None:
    inbox = encrypted_inbox(make_inbox, where={"note": ["other"]})
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1", note=MARKER))
        (ignored,) = await inbox._runtime.store.receipts.find(Filter(status="ignored"), limit=9)
        assert ignored.last_error is not None and MARKER in ignored.last_error
    assert_stored_nowhere(database, MARKER)


async def test_reason_of_a_consumers_filter_is_encrypted(
    make_inbox: Callable[..., Inbox], database: str, tmp_path: Path
) -> None:
    file = tmp_path / "oncehook.toml"
    file.write_text(
        f'database = "{database}"\nkeys = ["{ring("2026a")[0]}"]\n'
        f'[sources.stripe]\nsecrets = ["whsec_test"]\nencrypt = true\n'
        f'[consumers.copy]\nsources = ["stripe"]\nforward = "https://example.com/"\nwhere = {{ note = ["other"] }}\n'
    )
    inbox = Inbox(config=file, worker=False)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1", note=MARKER))
        (ignored,) = await inbox._runtime.store.receipts.find(Filter(consumer="copy"), limit=9)
        assert ignored.status == "ignored" and MARKER in (ignored.last_error or "")
    assert_stored_nowhere(database, MARKER)


async def test_payload_of_a_tenant_cannot_be_moved_to_the_same_event_of_another(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(keys=ring("2026a"))
    inbox.source("stripe", secrets_for=lambda tenant: [f"whsec_{tenant}"], encrypt=True)
    seen: list[tuple[str | None, str]] = []

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        seen.append((event.tenant, event["note"]))

    async with inbox.lifespan():
        for tenant in ("acme", "globex"):
            body = stripe_body("evt_1", note=f"{MARKER} {tenant}")
            response = await deliver(inbox, "stripe", body, tenant=tenant, secret=f"whsec_{tenant}")
            assert response.status == 202
        await drain(inbox)
        assert sorted(seen, key=str) == [("acme", f"{MARKER} acme"), ("globex", f"{MARKER} globex")]
        assert_stored_nowhere(database, MARKER)
        first, second = [id for (id,) in rows("SELECT id FROM webhook_receipts ORDER BY id")]
        for column in ("body", "headers"):
            source = f"(SELECT {column} FROM webhook_payloads WHERE receipt_id = {first})"
            rows(f"UPDATE webhook_payloads SET {column} = {source} WHERE receipt_id = {second} RETURNING 1")
        with pytest.raises(KeyWrong):
            await inbox._runtime.store.receipts.payload(second)


async def test_managed_source_can_be_encrypted_and_its_key_is_needed_from_then_on(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(keys=ring("2026a"))
    async with inbox.lifespan():
        runtime = inbox._runtime
        settings = {"provider": "stripe", "encrypt": True}
        await SourceChanges(runtime, runtime.store, "jane").add("shop", ["whsec_shop"], settings)
        await eventually(lambda: "shop" in runtime.sources, "the process knows the source")
        await deliver(inbox, "shop", stripe_body("evt_1", note=MARKER), secret="whsec_shop")
        assert rows("SELECT key_id FROM webhook_payloads") == rows("SELECT key_id FROM webhook_encryption_keys")
    assert_stored_nowhere(database, MARKER, "whsec_shop")
    assert json.loads(rows("SELECT settings FROM webhook_sources")[0][0])["encrypt"] is True
