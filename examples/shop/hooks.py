"""The shop's handlers for Stripe's events.

Each handler runs in one transaction, which also commits the processed status of its event. It writes rows through `tx`
and requests effects. It never calls an external service itself.
"""

from typing import Any

from sqlalchemy.orm import Session

from examples.shop.models import DATABASE, MAX_ANALYTICS, MAX_HANDLERS, Entitlement, Invoice, Sale, make_engine
from examples.shop.services import broker, mail_service
from oncehook import Effect, Inbox, SyncEvent

engine = make_engine(DATABASE)
inbox = Inbox(DATABASE, engine=engine, concurrency=MAX_HANDLERS)
inbox.source("stripe", secrets=["env:STRIPE_WEBHOOK_SECRET"], types=["invoice", "customer.subscription"])
inbox.consumer("analytics", concurrency=MAX_ANALYTICS)

# -- invoices -------------------------------------------------------------------------------------------------------


@inbox.on("stripe", "invoice.paid")
@inbox.on("stripe", "invoice.payment_succeeded")
def invoice_paid(event: SyncEvent, tx: Session) -> None:
    """Stripe sends both events for one payment. The effect keys name the invoice, so each effect runs once."""
    if not event.advance("invoice", event.object_id, state="paid", terminal=True):
        return  # the other event is newer and was handled first
    invoice = tx.merge(invoice_of(event, status="paid"))
    if to := event.get("data.object.customer_email"):  # not every customer has an address
        text = f"Thank you for {invoice.amount / 100:.2f} {invoice.currency.upper()}, invoice {invoice.id}."
        event.effect(f"receipt:{invoice.id}", send_receipt, to=to, text=text)
    payload = {"invoice": invoice.id, "customer": invoice.customer}
    event.publish("invoice-paid", payload, key=f"invoice-paid:{invoice.id}")


@inbox.on("stripe", "invoice.*")
def invoice_changed(event: SyncEvent, tx: Session) -> None:
    """All other invoice events: created, finalized, updated. A paid invoice stays paid if one of them is late."""
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
    """The newest event wins, in any order of arrival. A deleted subscription stays deleted."""
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


# -- analytics ------------------------------------------------------------------------------------------------------


@inbox.on("stripe", "invoice.paid", consumer="analytics")
def sale_counted(event: SyncEvent, tx: Session) -> None:
    """The consumer `analytics` has its own transaction and attempts. If it fails, the payment is handled anyway."""
    tx.merge(sale_of(event))


def sale_of(event: SyncEvent) -> Sale:
    paid_at = event.occurred_at or event.received_at
    return Sale(
        invoice=event["data.object.id"],
        amount=event["data.object.amount_due"],
        currency=event["data.object.currency"],
        day=f"{paid_at:%Y-%m-%d}",
    )


# -- outside the database -------------------------------------------------------------------------------------------


@inbox.effect
def send_receipt(effect: Effect, to: str, text: str) -> None:
    """Called after the commit, and again if the process dies before the effect is settled: hence the key."""
    mail_service.send({"to": to, "text": text}, idempotency_key=effect.idempotency_key)


@inbox.subscribe("invoice-paid")
def send_to_broker(effect: Effect, payload: Any) -> None:
    broker.send({"topic": "invoice-paid", **payload}, idempotency_key=effect.idempotency_key)
