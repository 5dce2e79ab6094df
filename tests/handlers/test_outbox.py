"""The outbox of a handler call: awaited calls, effects that are written with the status, and `once_per`."""

import pytest

from oncehook import Event, Inbox, Retry, TransactionClosed
from oncehook.testing import drain
from tests.support.events import Rows
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_handler_that_does_not_await_advance_fails(inbox: Inbox, rows: Rows) -> None:
    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def handle(event: Event) -> None:
        event.advance("subscription", event.object_id, version=1)  # type: ignore[unused-coroutine]

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("failed",)])
    [(error,)] = rows("SELECT last_error FROM webhook_receipts")
    assert "event.advance(…) was not awaited" in error


async def test_effects_that_were_not_awaited_are_written_with_the_processed_status(inbox: Inbox, rows: Rows) -> None:
    inbox.effect(name="send")(lambda effect: None)

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        event.effect("mail:1", "send")  # type: ignore[unused-coroutine]
        event.effect("mail:2", "send")  # type: ignore[unused-coroutine]

    await claim(inbox, "evt_1")
    await drain(inbox, effects=False)
    assert rows("SELECT key FROM webhook_effects ORDER BY key") == [("mail:1",), ("mail:2",)]


async def test_two_different_effects_with_one_key_are_an_error(inbox: Inbox, rows: Rows) -> None:
    inbox.effect(name="send")(lambda effect, to: None)

    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def handle(event: Event) -> None:
        await event.effect("mail", "send", to="jane")
        await event.effect("mail", "send", to="john")

    await claim(inbox, "evt_1")
    (receipt,) = await drain(inbox, effects=False)
    assert receipt.last_error is not None and "two different effects with the key 'mail'" in receipt.last_error
    assert rows("SELECT count(*) FROM webhook_effects") == [(0,)], "a failed handler must record no effect"


async def test_only_the_first_event_of_an_identity_keeps_its_work(inbox: Inbox, rows: Rows) -> None:
    handled: list[str] = []
    inbox.effect(name="send")(lambda effect: None)

    @inbox.on("stripe", "*", once_per="object_id")
    async def handle(event: Event) -> None:
        handled.append(event.id)
        await event.effect(f"mail:{event.id}", "send")

    await claim(inbox, "evt_1", "evt_2", object_id="in_1")
    assert {receipt.status for receipt in await drain(inbox, effects=False)} == {"processed"}
    assert handled == ["evt_1"]
    assert rows("SELECT key FROM webhook_effects WHERE kind <> 'once'") == [("mail:evt_1",)]
    assert rows("SELECT reason FROM webhook_noops") == [("effect",)]


async def test_method_of_an_event_after_its_handler_is_an_error(inbox: Inbox) -> None:
    leaked: list[Event] = []
    inbox.effect(name="send")(lambda effect: None)

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        leaked.append(event)

    await claim(inbox, "evt_1")
    await drain(inbox)
    with pytest.raises(TransactionClosed, match="after its handler had ended"):
        await leaked[0].effect("late", "send")
