"""The handlers of the shop. Each runs inside a transaction, together with the processed status of its event."""

from django.core.mail import send_mail

from oncehook import Effect, RetryLater, SyncEvent
from oncehook.integrations.django import inbox
from shop.models import Invoice, Payment


@inbox.effect
def send_receipt(effect: Effect, to: str, number: str) -> None:
    """Send a mail, after the commit."""
    send_mail(f"Invoice {number} is paid", "Thank you.", None, [to])


@inbox.on("stripe", "invoice.paid")
def invoice_paid(event: SyncEvent) -> None:
    invoice = Invoice.objects.select_for_update().filter(number=event.object_id).first()
    if invoice is None:  # Stripe may be faster than the checkout
        raise RetryLater("the invoice does not exist yet", after="1m")
    if not event.advance("invoice", invoice.number, state="paid"):
        return  # a newer event of this invoice was handled first
    Payment.objects.update_or_create(invoice=invoice, defaults={"amount": event["data.object.amount_paid"]})
    invoice.status = "paid"
    invoice.save()
    event.effect(f"receipt:{invoice.number}", send_receipt, to=invoice.email, number=invoice.number)


@inbox.on("stripe", "invoice.voided")
def invoice_voided(event: SyncEvent) -> None:
    if event.advance("invoice", event.object_id, state="void"):
        Invoice.objects.filter(number=event.object_id).update(status="void")
