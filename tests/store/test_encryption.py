"""An encrypted source leaves nothing of its payloads in the database, and works as any other source."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Event, Fail, Inbox
from oncehook.config.keyring import KeyMissing, KeyWrong, read_keys
from oncehook.effects.effect import Effect
from oncehook.model.effect import EffectFilter
from oncehook.model.receipt import Filter
from oncehook.operations.forget import find_mentions, forget
from oncehook.store.store import Store
from oncehook.testing import deliver, drain
from tests.support.encryption import KEYS, assert_stored_nowhere, encrypted_inbox, stored_somewhere
from tests.support.events import Rows

pytestmark = pytest.mark.anyio

BODY, HEADER, ERROR, ARGUMENT, CALL = "Markerbody", "Markerheader", "Markererror", "Markerarg", "Markercall"
MARKERS = BODY, HEADER, ERROR, ARGUMENT, CALL


def with_handlers(inbox: Inbox, seen: list[Any] | None = None) -> Inbox:
    """A handler that requests an effect and one that fails. Each uses the payload."""

    @inbox.effect(name="call")
    async def call(effect: Effect, text: str) -> None:
        if seen is not None:
            seen.append(text)
        raise Fail(f"{CALL} {text}")

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        if seen is not None:
            seen.append((event["data.object.note"], event.headers["x-note"], event.raw))
        await event.effect(f"call:{event.id}", "call", text=f"{ARGUMENT} {event['data.object.note']}")

    @inbox.on("stripe", "invoice.voided")
    async def voided(event: Event) -> None:
        raise Fail(f"{ERROR} {event['data.object.note']}")

    return inbox


def body(event_id: str, type_: str = "invoice.paid") -> bytes:
    event = {"id": event_id, "type": type_, "created": 1, "data": {"object": {"id": "in_1", "note": BODY}}}
    return json.dumps(event).encode()


async def send(inbox: Inbox, event_id: str, type_: str = "invoice.paid") -> int:
    response = await deliver(inbox, "stripe", body(event_id, type_), headers={"x-note": HEADER})
    assert response.status == 202 and response.receipt is not None
    return response.receipt


def store_of(inbox: Inbox) -> Store:
    return inbox._runtime.store


async def test_database_contains_no_text_of_an_encrypted_event(make_inbox: Callable[..., Inbox], database: str) -> None:
    seen: list[Any] = []
    inbox = with_handlers(encrypted_inbox(make_inbox), seen)
    async with inbox.lifespan():
        paid, voided = await send(inbox, "evt_1"), await send(inbox, "evt_2", "invoice.voided")
        await deliver(inbox, "stripe", body("evt_3"), headers={"x-note": HEADER}, tampered=True)
        await deliver(inbox, "stripe", body("evt_1"), headers={"x-note": HEADER})
        await drain(inbox)
        assert seen == [(BODY, HEADER, body("evt_1")), f"{ARGUMENT} {BODY}"]
        store = store_of(inbox)
        receipts = {row.receipt: row.last_error for row in await store.receipts.find(Filter(), limit=9)}
        assert receipts == {paid: None, voided: f"Fail: {ERROR} {BODY}"}
        (attempt,) = await store.receipts.attempts(voided)
        assert attempt.error == f"Fail: {ERROR} {BODY}" and "in voided" in (attempt.traceback or "")
        (effect,) = await store.effects.find(EffectFilter(), limit=9)
        assert effect.args is not None and json.loads(effect.args) == {"text": f"{ARGUMENT} {BODY}"}
        assert effect.last_error == f"Fail: {CALL} {ARGUMENT} {BODY}"
        payload = await store.receipts.payload(paid)
        assert payload is not None and payload.is_encrypted
        assert (payload.body, payload.headers["x-note"]) == (body("evt_1"), HEADER)
        assert_stored_nowhere(database, *MARKERS)
        await inbox.replay(voided)
        await inbox.rehearse(paid)
        await drain(inbox)
    assert_stored_nowhere(database, *MARKERS)


async def test_source_without_encryption_is_stored_as_before(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = encrypted_inbox(make_inbox)
    async with inbox.lifespan():
        await deliver(inbox, "github", type="push", id="plain-1")
        await send(inbox, "evt_1")
    plain, encrypted = rows("SELECT body, headers, key_id FROM webhook_payloads ORDER BY receipt_id")
    assert plain[0].startswith(b"{") and plain[1].startswith("{") and plain[2] is None
    assert encrypted[1].startswith("oncehook:aesgcm:2026a:") and encrypted[2] == "2026a"


async def test_ids_type_and_serial_key_stay_readable(make_inbox: Callable[..., Inbox], database: str) -> None:
    inbox = encrypted_inbox(make_inbox, serial_by="object_id")
    async with inbox.lifespan():
        await send(inbox, "evt_1")
    for text in ("evt_1", "invoice.paid", "in_1"):
        assert stored_somewhere(database, text) >= {"webhook_receipts"}, text


async def test_inline_source_is_encrypted_too(make_inbox: Callable[..., Inbox], database: str) -> None:
    inbox = with_handlers(encrypted_inbox(make_inbox, mode="inline", max_attempts=2))
    async with inbox.lifespan():
        first = await deliver(inbox, "stripe", body("evt_1", "invoice.voided"), headers={"x-note": HEADER})
        assert first.status == 200, "a Fail is final"
        assert (await deliver(inbox, "stripe", body("evt_2"), headers={"x-note": HEADER})).status == 200
        (failed,) = await store_of(inbox).receipts.find(Filter(status="failed"), limit=9)
        assert failed.last_error == f"Fail: {ERROR} {BODY}"
    assert_stored_nowhere(database, *MARKERS)


async def test_log_shows_the_class_of_an_error_and_not_its_text(
    make_inbox: Callable[..., Inbox], lines: Callable[[], list[dict[str, Any]]]
) -> None:
    inbox = with_handlers(encrypted_inbox(make_inbox))
    async with inbox.lifespan():
        await send(inbox, "evt_1")
        await send(inbox, "evt_2", "invoice.voided")
        await drain(inbox)
    logged = {line["event"]: line.get("error") for line in lines()}
    assert logged["dead_letter"] == logged["effect_failed"] == "Fail"
    assert not any(marker in str(lines()) for marker in MARKERS)


# -- keys that are missing or wrong ----------------------------------------------------------------------------------


async def test_receipt_waits_without_an_attempt_while_its_key_is_missing(
    make_inbox: Callable[..., Inbox], rows: Rows, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    inbox = with_handlers(encrypted_inbox(make_inbox, "2026b", "2026a"))
    async with inbox.lifespan():
        await send(inbox, "evt_1")
        with_other_keys(inbox, "2026a")
        (leased,) = await store_of(inbox).leases.take(1, 30, "worker-1")
        assert leased.body is None and isinstance(leased.payload_error, KeyMissing)
        assert await inbox._runtime.start_processor().process(leased) is None
        assert rows("SELECT status, attempts, last_error FROM webhook_receipts") == [("received", 0, None)]
        assert rows("SELECT count(*) FROM webhook_attempts") == [(0,)]
        assert ("key_missing", {"source": "stripe", "receipt": leased.receipt, "key": "2026b"}) in emitted


async def test_receipt_with_a_wrong_key_is_a_dead_letter_that_can_be_replayed(
    make_inbox: Callable[..., Inbox],
) -> None:
    seen: list[Any] = []
    inbox = with_handlers(encrypted_inbox(make_inbox, "2026a"), seen)
    async with inbox.lifespan():
        receipt = await send(inbox, "evt_1")
        with_other_keys(inbox, "2026a", wrong=True)
        (dead,) = await drain(inbox)
        assert dead.status == "failed" and dead.last_error is not None
        assert "names the key 2026a cannot be decrypted" in dead.last_error and seen == []
        with pytest.raises(KeyWrong):
            await store_of(inbox).receipts.payload(receipt)
        with_other_keys(inbox, "2026a")
        await inbox.replay(receipt)
        await drain(inbox)
        assert len(seen) == 2


def with_other_keys(inbox: Inbox, *ids: str, wrong: bool = False) -> None:
    """Change the key ring of a running inbox. With `wrong`, the first id has the key of another."""
    keys = {**KEYS, ids[0]: KEYS["2026c"]} if wrong else KEYS
    store_of(inbox)._keys = read_keys([f"{id}:{keys[id]}" for id in ids])


async def test_error_and_arguments_without_their_key_are_shown_as_a_note(make_inbox: Callable[..., Inbox]) -> None:
    inbox = with_handlers(encrypted_inbox(make_inbox, "2026b", "2026a"))
    async with inbox.lifespan():
        await send(inbox, "evt_1")
        voided = await send(inbox, "evt_2", "invoice.voided")
        await drain(inbox)
        with_other_keys(inbox, "2026a")
        store, note = store_of(inbox), "(encrypted; the key 2026b is missing)"
        (failed,) = await store.receipts.find(Filter(status="failed"), limit=9)
        (attempt,) = await store.receipts.attempts(voided)
        (effect,) = await store.effects.find(EffectFilter(), limit=9)
        (group,) = await store.stats.dead_letters(10)
        assert failed.last_error == attempt.error == attempt.traceback == effect.last_error == group.last_error == note
        assert effect.args is None
        with pytest.raises(KeyMissing):
            await store.receipts.payload(voided)


async def test_payload_that_was_copied_to_another_event_is_not_decrypted(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = encrypted_inbox(make_inbox)
    async with inbox.lifespan():
        first, second = await send(inbox, "evt_1"), await send(inbox, "evt_2")
        rows(
            f"UPDATE webhook_payloads SET body = (SELECT body FROM webhook_payloads WHERE receipt_id = {first}) "
            f"WHERE receipt_id = {second} RETURNING 1"
        )
        with pytest.raises(KeyWrong):
            await store_of(inbox).receipts.payload(second)


# -- erasing ---------------------------------------------------------------------------------------------------------


async def test_forget_finds_an_address_in_encrypted_payloads_and_erases_what_they_left(
    make_inbox: Callable[..., Inbox], rows: Rows
) -> None:
    inbox = with_handlers(encrypted_inbox(make_inbox))
    async with inbox.lifespan():
        voided, paid = await send(inbox, "evt_1", "invoice.voided"), await send(inbox, "evt_2")
        await drain(inbox)
        store = store_of(inbox)
        found = [receipt async for receipt, matches in find_mentions(store, BODY) if matches]
        assert found == [voided, paid]
        assert await forget(store, found, actor="jane", address=BODY) == 2
        assert rows("SELECT last_error FROM webhook_receipts WHERE status = 'failed'") == [("(erased)",)]
        assert rows("SELECT error, traceback FROM webhook_past_attempts") == [("(erased)", None)]
        assert rows("SELECT args, last_error FROM webhook_effects") == [(None, "(erased)")]
        assert rows("SELECT count(*) FROM webhook_payloads") == [(0,)]


async def test_search_for_an_address_without_the_key_is_an_error_and_not_an_empty_result(
    make_inbox: Callable[..., Inbox],
) -> None:
    inbox = encrypted_inbox(make_inbox, "2026b", "2026a")
    async with inbox.lifespan():
        await send(inbox, "evt_1")
        with_other_keys(inbox, "2026a")
        with pytest.raises(KeyMissing, match="the key 2026b is missing"):
            _ = [receipt async for receipt, _ in find_mentions(store_of(inbox), BODY)]
