"""The demo's handlers: a small shop in which some handlers and effects fail, so that every dashboard page has content.

Failures depend on the receipt's number: some events fail only at the first attempt, and a few become dead letters.
"""

from typing import Any

from oncehook.effects.effect import Effect
from oncehook.handlers.event import Event
from oncehook.inbox import Inbox
from oncehook.model.retry import Fail, RetryLater


def register_handlers(inbox: Inbox) -> None:
    inbox.effect(send_receipt)
    inbox.on("stripe", "invoice.paid")(invoice_paid)
    inbox.on("stripe", "charge.refunded")(charge_refunded)
    inbox.on("shopify", "*")(order)


async def send_receipt(effect: Effect, to: str) -> None:
    if effect.id % 30 == 0:
        raise Fail(f"550 5.1.1 the mail server does not know {to}")
    if effect.id % 10 == 0 and effect.attempt == 1:
        raise RetryLater("the mail server is busy", after=2)


async def invoice_paid(event: Event, tx: Any) -> None:
    if await event.advance("invoice", event.object_id, state="paid"):
        to = event["data.object.customer_email"]
        await event.effect(f"receipt-email:{event.object_id}", send_receipt, to=to)


async def charge_refunded(event: Event) -> None:
    if event.receipt % 3 == 0:
        raise Fail(f"the ledger has no charge {event.object_id}")


async def order(event: Event) -> None:
    if event.receipt % 5 == 0 and event.attempt == 1:
        raise ConnectionError("the warehouse did not answer")
