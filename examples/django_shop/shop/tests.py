"""Tests of the handlers: duplicates, failures, events out of order, and a replay."""

from typing import Any
from unittest.mock import patch

from django.core import mail
from django.test import TestCase

from oncehook import State
from oncehook.integrations.django.testing import WebhookMixin
from shop.models import Invoice, Payment


def event(id: str, type: str = "invoice.paid", created: int = 1763200000) -> dict[str, Any]:
    """An event about the invoice in_1."""
    return {"id": id, "type": type, "created": created, "data": {"object": {"id": "in_1", "amount_paid": 4200}}}


class Webhooks(WebhookMixin, TestCase):
    def setUp(self) -> None:
        super().setUp()
        self.invoice = Invoice.objects.create(number="in_1", email="jane@example.com")

    def assert_paid_once(self) -> None:
        self.invoice.refresh_from_db()
        self.assertEqual(self.invoice.status, "paid")
        self.assertEqual(Payment.objects.get().amount, 4200)
        self.assertEqual([message.to for message in mail.outbox], [["jane@example.com"]])

    def test_event_delivered_three_times_is_paid_once(self) -> None:
        statuses = [self.webhooks.post("stripe", event("evt_1"), client=self.client).status_code for _ in range(3)]
        self.assertEqual(statuses, [202, 200, 200])
        self.webhooks.drain()
        self.assert_paid_once()

    def test_two_events_of_one_payment_send_one_mail(self) -> None:
        self.webhooks.deliver("stripe", event("evt_1"))
        self.webhooks.deliver("stripe", event("evt_2", created=1763200001))
        self.webhooks.drain()
        self.assert_paid_once()

    def test_event_before_its_invoice_is_retried(self) -> None:
        Invoice.objects.all().delete()
        self.webhooks.deliver("stripe", event("evt_1"))
        (receipt,) = self.webhooks.drain()
        self.assertEqual(receipt.status, State.RETRYING)
        self.invoice = Invoice.objects.create(number="in_1", email="jane@example.com")
        self.webhooks.advance("2m")
        self.webhooks.drain()
        self.assert_paid_once()

    def test_handler_that_fails_leaves_nothing(self) -> None:
        self.webhooks.deliver("stripe", event("evt_1"))
        with patch.object(Invoice, "save", side_effect=ConnectionError("after the payment was written")):
            (receipt,) = self.webhooks.drain()
        self.assertEqual((receipt.status, Payment.objects.count()), (State.RETRYING, 0))
        self.webhooks.drain(later=True)
        self.assert_paid_once()

    def test_late_event_does_not_undo_a_newer_one(self) -> None:
        self.webhooks.deliver("stripe", event("evt_2", "invoice.voided", created=1763200005))
        self.webhooks.deliver("stripe", event("evt_1", created=1763200000))
        self.webhooks.drain()
        self.invoice.refresh_from_db()
        self.assertEqual((self.invoice.status, Payment.objects.count()), ("void", 0))

    def test_crashed_worker_and_replay_change_nothing(self) -> None:
        response = self.webhooks.deliver("stripe", event("evt_1"))
        self.webhooks.crash()
        self.webhooks.advance("5m")
        self.webhooks.drain(later=True)
        self.assert_paid_once()
        self.assertEqual(self.webhooks.replay(response), 1)
        self.webhooks.drain()
        self.assert_paid_once()
