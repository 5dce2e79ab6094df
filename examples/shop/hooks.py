"""What Stripe's events do to the shop.

Each handler is one transaction with the mark that its event is processed. It writes rows through `tx` and asks for what
is to be done outside; it never does that itself.
"""

from typing import Any

from sqlalchemy.orm import Session

from examples.shop.models import DATABASE, HANDLERS_AT_ONCE, Entitlement, Invoice, make_engine
from examples.shop.outside import broker, mail_service
from oncehook import Effect, Inbox, SyncEvent

engine = make_engine(DATABASE)
inbox = Inbox(DATABASE, engine=engine, concurrency=HANDLERS_AT_ONCE)
inbox.source("stripe", secrets=["env:STRIPE_WEBHOOK_SECRET"], types=["invoice", "customer.subscription"])

# -- invoices -------------------------------------------------------------------------------------------------------


@inbox.on("stripe", "invoice.paid")
@inbox.on("stripe", "invoice.payment_succeeded")
def invoice_paid(event: SyncEvent, tx: Session) -> None:
    """Stripe tells of one payment in both events. The keys name the invoice, so the second finds everything done."""
    if not event.advance("invoice", event.object_id, state="paid", terminal=True):
        return  # the other one is newer and was here before
    invoice = tx.merge(invoice_of(event, status="paid"))
    if to := event.get("data.object.customer_email"):  # not every customer has one
        text = f"Thank you for {invoice.amount / 100:.2f} {invoice.currency.upper()}, invoice {invoice.id}."
        event.effect(f"receipt:{invoice.id}", send_receipt, to=to, text=text)
    news = {"invoice": invoice.id, "customer": invoice.customer}
    event.publish("invoice-paid", news, key=f"invoice-paid:{invoice.id}")


@inbox.on("stripe", "invoice.*")
def invoice_changed(event: SyncEvent, tx: Session) -> None:
    """Everything else about an invoice: created, finalized, updated. Paid is the end, whatever comes late."""
    status = event["data.object.status"]
    if event.advance("invoice", event.object_id, state=status):
        tx.merge(invoice_of(event, status=status))


def invoice_of(event: SyncEvent, *, status: str) -> Invoice:
    return Invoice(
        id=event["data.object.id"],
        customer=event["data.object.customer"],
        amount=event["data.object.amount_due"],
        currency=event["data.object.currency"],
        status=status,
    )


# -- entitlements ---------------------------------------------------------------------------------------------------


@inbox.on("stripe", "customer.subscription.*")
def subscription_changed(event: SyncEvent, tx: Session) -> None:
    """The newest word counts, in whatever order they come; a subscription that was deleted stays so."""
    ended = event.type == "customer.subscription.deleted"
    status = event["data.object.status"]
    if not event.advance("subscription", event.object_id, state=status, terminal=ended):
        return
    tx.merge(
        Entitlement(
            subscription=event["data.object.id"],
            customer=event["data.object.customer"],
            plan=event["data.object.items.data.0.price.id"],
            is_active=not ended and status in ("active", "trialing"),
        )
    )


# -- outside the database -------------------------------------------------------------------------------------------


@inbox.effect
def send_receipt(effect: Effect, to: str, text: str) -> None:
    """Called after the commit, and again if this process dies before it is marked as done: hence the key."""
    mail_service.send({"to": to, "text": text}, idempotency_key=effect.idempotency_key)


@inbox.subscribe("invoice-paid")
def to_the_broker(effect: Effect, payload: Any) -> None:
    broker.send({"topic": "invoice-paid", **payload}, idempotency_key=effect.idempotency_key)
