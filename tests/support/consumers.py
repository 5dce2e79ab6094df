"""Inboxes whose events have several consumers, and the outcome of each consumer."""

from collections.abc import Callable

from oncehook import Event, Inbox
from oncehook.testing import DeliveryResponse, deliver
from tests.support.events import Rows, stripe_body

Handled = list[tuple[str, str]]
"""(consumer, event id) of every call of a handler that `record` registered, in the order of the calls."""


def record(inbox: Inbox, handled: Handled, *consumers: str, pattern: str = "*") -> None:
    """Register a handler that records its calls for each of these consumers."""

    async def handle(event: Event) -> None:
        handled.append((event.consumer, event.id))

    for consumer in consumers:
        inbox.on("stripe", pattern, consumer=consumer)(handle)


async def send(inbox: Inbox, *event_ids: str, type_: str = "invoice.paid") -> list[DeliveryResponse]:
    """Deliver events one after another. Each of them must be accepted, whatever its consumers do."""
    responses = [await deliver(inbox, "stripe", stripe_body(event_id, type_)) for event_id in event_ids]
    assert [response.outcome for response in responses] == [(202, "accepted")] * len(event_ids)
    return responses


def outcomes(rows: Rows, event_id: str = "evt_1") -> dict[str, str]:
    """The status of an event for each consumer."""
    found = rows(f"SELECT consumer, status FROM webhook_receipts WHERE event_id = '{event_id}'")
    assert len(found) == len(dict(found)), "a consumer has two receipts of one event"
    return dict(found)


def outcomes_are(rows: Rows, event_id: str = "evt_1", **expected: str) -> Callable[[], bool]:
    """A condition: an event has exactly these consumers, each with this status."""
    return lambda: outcomes(rows, event_id) == expected


def all_are(rows: Rows, consumer: str, status: str, count: int) -> Callable[[], bool]:
    """A condition: a consumer has exactly `count` receipts, all with this status."""
    statement = f"SELECT status, count(*) FROM webhook_receipts WHERE consumer = '{consumer}' GROUP BY status"
    return lambda: rows(statement) == [(status, count)]
