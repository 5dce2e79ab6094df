"""The read-only models of the tables."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncehook.integrations.django.models import Event, ReadOnly
from oncehook.testing import Bench
from tests.support.django_shop.models import Invoice


@pytest.fixture
def event(django_inbox: Any) -> Iterator[Event]:
    """An event that was processed in its second attempt."""

    @django_inbox.on("stripe", "*")
    def handle(event: Any) -> None:
        Invoice.objects.create(number=event.id)
        if event.attempt == 1:
            raise LookupError("no such invoice")

    with Bench(django_inbox) as bench:
        bench.deliver("stripe", type="invoice.paid", id="evt_1")
        bench.drain(later=True)
    yield Event.objects.get(event_id="evt_1")


def test_model_shows_the_event_with_its_attempts(event: Event) -> None:
    assert (event.status, event.attempts, event.payload_receipt) == ("processed", 2, event.pk)
    assert [(attempt.number, attempt.outcome) for attempt in event.attempt_set.all()] == [
        (1, "retrying"),
        (2, "processed"),
    ]
    assert str(event) == "invoice.paid evt_1"


def test_times_are_compared_as_times(event: Event) -> None:
    now = datetime.now(UTC)
    assert event.received_at.tzinfo is not None
    for hours, count in ((-24 * 30, 1), (0, 0)):
        assert Event.objects.filter(received_at__gte=now + timedelta(hours=hours, seconds=5)).count() == count
    moment = event.received_at
    assert Event.objects.filter(received_at=moment).count() == 1
    assert Event.objects.filter(received_at__lt=moment).count() == 0


def test_models_are_read_only(event: Event) -> None:
    for write in (event.save, event.delete, Event.objects.all().delete, Event.objects.create):
        with pytest.raises(ReadOnly, match="the tables of the inbox are read-only"):
            write()
    with pytest.raises(ReadOnly):
        Event.objects.update(status="failed")
