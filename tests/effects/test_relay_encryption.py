"""Effects of encrypted events: the relay runs them with their arguments, or waits for the key."""

from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Effect, Event, Inbox
from oncehook.config.keyring import KeyRing, read_keys
from oncehook.effects.relay import Relay
from oncehook.testing import deliver, drain
from tests.support.encryption import encrypted_inbox, ring
from tests.support.events import Rows, stripe_body

pytestmark = pytest.mark.anyio

EFFECTS = "SELECT status, attempts, last_error FROM webhook_effects"


@pytest.fixture
def called() -> list[str]:
    return []


@pytest.fixture
def inbox(make_inbox: Callable[..., Inbox], called: list[str]) -> Inbox:
    """An inbox with an encrypted source, whose handler requests an effect."""
    inbox = encrypted_inbox(make_inbox, "2026b", "2026a")

    @inbox.effect
    async def mail(effect: Effect, text: str) -> None:
        called.append(text)

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        await event.effect("mail:1", mail, text=event["note"])

    return inbox


def relay_of(inbox: Inbox) -> Relay:
    return Relay(inbox._runtime.store, inbox._runtime.effects)


async def request_effect(inbox: Inbox) -> None:
    await deliver(inbox, "stripe", stripe_body("evt_1", note="hello"))
    await drain(inbox, effects=False)


async def test_effect_gets_its_decrypted_arguments(inbox: Inbox, called: list[str], rows: Rows) -> None:
    async with inbox.lifespan():
        await request_effect(inbox)
        assert rows("SELECT args FROM webhook_effects")[0][0].startswith("oncehook:aesgcm:2026b:")
        await relay_of(inbox).drain()
    assert called == ["hello"] and rows(EFFECTS) == [("done", 1, None)]


async def test_effect_waits_without_an_attempt_while_its_key_is_missing(
    inbox: Inbox, called: list[str], rows: Rows, emitted: list[tuple[str, dict[str, Any]]]
) -> None:
    async with inbox.lifespan():
        await request_effect(inbox)
        inbox._runtime.store._keys = read_keys(ring("2026a"))
        await relay_of(inbox).drain(most=1)
        assert called == [] and rows(EFFECTS) == [("waiting", 0, None)]
        assert [fields["key"] for name, fields in emitted if name == "key_missing"] == ["2026b"]


async def test_effect_with_a_wrong_key_fails_and_can_be_replayed(inbox: Inbox, called: list[str], rows: Rows) -> None:
    async with inbox.lifespan():
        await request_effect(inbox)
        store = inbox._runtime.store
        store._keys = read_keys([ring("2026c")[0].replace("2026c", "2026b")])
        await relay_of(inbox).drain(most=1)
        ((status, _, error),) = rows(EFFECTS)
        assert status == "failed" and "cannot be decrypted" in error and called == []
        store._keys = read_keys(ring("2026b"))
        ((effect,),) = rows("SELECT id FROM webhook_effects")
        assert await store.effects.replay([effect], "jane") == [effect]
        await relay_of(inbox).drain()
        assert called == ["hello"]


async def test_delivery_is_not_accepted_while_the_process_has_no_key(inbox: Inbox, rows: Rows) -> None:
    async with inbox.lifespan():
        inbox._runtime.store._keys = KeyRing()
        response = await deliver(inbox, "stripe", stripe_body("evt_1"))
        assert response.status == 503 and rows("SELECT count(*) FROM webhook_receipts") == [(0,)]
