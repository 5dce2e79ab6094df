"""Payloads for people: what they see if a payload cannot be decrypted."""

from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.config.keyring import KeyRing
from oncehook.operations.payloads import read_payload
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
