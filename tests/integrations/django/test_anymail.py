"""Anymail's receivers get Oncehook's email events, in the handler's transaction."""

from typing import Any

import pytest
from anymail.signals import tracking

from oncehook.integrations.django.anymail import send_tracking
from oncehook.testing import Bench
from tests.support.django_shop.models import Invoice
from tests.support.events import Rows
from tests.support.work import QUICK

BOUNCE = {
    "event": "bounce",
    "email": "jane@example.com",
    "sg_event_id": "sg_1",
    "sg_message_id": "abc.filter1",
    "timestamp": 1763200000,
    "reason": "550 no such user",
    "category": ["newsletter"],
}


@pytest.fixture
def received() -> Any:
    """Counts how often the receiver was called, and fails at first."""
    calls: list[Any] = []

    def receive(sender: Any, event: Any, esp_name: str, **extra: Any) -> None:
        calls.append((esp_name, event))
        Invoice.objects.create(number=event.recipient)
        if len(calls) == 1:
            raise ConnectionError("the bank is closed")

    tracking.connect(receive)
    yield calls
    tracking.disconnect(receive)


def test_receiver_runs_in_the_transaction_of_the_handler(django_inbox: Any, rows: Rows, received: list[Any]) -> None:
    django_inbox.source("sendgrid", verify="none", email=True)

    @django_inbox.on("sendgrid", "*", retry=QUICK)
    def handle(event: Any) -> None:
        assert send_tracking(event) == 1

    with Bench(django_inbox) as bench:
        bench.deliver("sendgrid", [BOUNCE])
        bench.drain(later=True)
    assert rows("SELECT status, attempts FROM webhook_receipts") == [("processed", 2)]
    assert rows("SELECT number FROM django_shop_invoice") == [("jane@example.com",)]
    assert len(received) == 2
    esp_name, event = received[1]
    assert esp_name == "SendGrid"
    assert (event.event_type, event.recipient, event.reject_reason) == ("bounced", "jane@example.com", "bounced")
    assert (event.tags, event.description, event.event_id) == (["newsletter"], "550 no such user", "sg_1")
    assert event.timestamp.timestamp() == 1763200000
