"""The demo's handlers: a small shop in which most things go well, so that every page of the dashboard has something."""

from typing import Any

from oncehook.effect import Effect
from oncehook.event import Event
from oncehook.inbox import Inbox
from oncehook.retry import Fail, RetryLater


def open_shop(inbox: Inbox) -> None:
    """What fails does so by its number: some at the first attempt only, a few for good."""

    @inbox.effect
    async def send_receipt(effect: Effect, to: str) -> None:
        if effect.id % 30 == 0:
            raise Fail(f"550 5.1.1 the mail server knows no {to}")
        if effect.id % 10 == 0 and effect.attempt == 1:
            raise RetryLater("the mail server is busy", after=2)

    @inbox.on("stripe", "invoice.paid")
    async def invoice_paid(event: Event, tx: Any) -> None:
        if not await event.advance("invoice", event.object_id, state="paid"):
            return
        to = event["data.object.customer_email"]
        await event.effect(f"receipt-email:{event.object_id}", send_receipt, to=to)

    @inbox.on("stripe", "charge.refunded")
    async def charge_refunded(event: Event) -> None:
        if event.receipt % 3 == 0:
            raise Fail(f"the ledger has no charge {event.object_id}")

    @inbox.on("shopify", "*")
    async def order(event: Event) -> None:
        if event.receipt % 5 == 0 and event.attempt == 1:
            raise ConnectionError("the warehouse did not answer")
