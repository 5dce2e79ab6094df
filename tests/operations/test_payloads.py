"""Payloads for people: what they see if a payload cannot be decrypted."""

from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.config.keyring import KeyRing
from oncehook.model.receipt import Filter
from oncehook.operations.payloads import SEARCH_NOTE, read_payload, search_note
from oncehook.testing import deliver
from tests.support.encryption import encrypted_inbox
from tests.support.events import stripe_body

pytestmark = pytest.mark.anyio


async def test_payload_is_shown_decrypted_or_with_the_reason_why_not(make_inbox: Callable[..., Inbox]) -> None:
    inbox = encrypted_inbox(make_inbox)
    async with inbox.lifespan():
        store = inbox._runtime.store
        receipt = (await deliver(inbox, "stripe", stripe_body("evt_1"))).receipt
        assert receipt is not None
        payload, unreadable = await read_payload(store, receipt)
        assert payload is not None and payload.body == stripe_body("evt_1") and unreadable is None
        store._keys = KeyRing()
        payload, unreadable = await read_payload(store, receipt)
        assert payload is None and unreadable is not None
        assert unreadable.startswith("The payload is encrypted and cannot be shown: the key 2026a is missing")
        await store.retention.erase([receipt], None, "jane", "{}")
        assert await read_payload(store, receipt) == (None, None)


async def test_search_that_leaves_out_encrypted_payloads_says_so(make_inbox: Callable[..., Inbox]) -> None:
    inbox = encrypted_inbox(make_inbox)
    sources = {name: source.settings for name, source in inbox._runtime.sources.items()}
    async with inbox.lifespan():
        store = inbox._runtime.store
        for name in (None, "stripe", "managed"):
            assert await search_note(store, Filter(search="x", source=name), sources) == SEARCH_NOTE
        for condition in (Filter(), Filter(source="stripe"), Filter(search="x", source="github")):
            assert await search_note(store, condition, sources) is None


async def test_search_of_an_inbox_without_encryption_has_no_note(inbox: Inbox) -> None:
    assert await search_note(inbox._runtime.store, Filter(search="x"), {}) is None


async def test_search_finds_only_the_ids_of_encrypted_events(
    make_inbox: Callable[..., Inbox],
) -> None:
    inbox = encrypted_inbox(make_inbox)
    async with inbox.lifespan():
        await deliver(inbox, "stripe", stripe_body("evt_1", filler="needle"))
        find = inbox._runtime.store.receipts.find
        assert await find(Filter(search="needle"), limit=9) == []
        assert len(await find(Filter(search="evt_1"), limit=9)) == len(await find(Filter(search="in_1"), limit=9)) == 1
