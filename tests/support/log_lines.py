"""Deliveries with every outcome, and the log lines that they must cause."""

import io
import json
from typing import Any

from oncehook import Inbox
from oncehook.testing import DeliveryResponse, deliver
from tests.support.events import stripe_body

EVERY_EVENT = {"source", "provider", "event_id", "type", "object_id", "receipt", "status", "correlation_id"}
"""The fields of every line about an event."""

EXPECTED = [
    ("accepted", "info", "evt_1", "received"),
    ("duplicate", "info", "evt_1", "received"),
    ("body_changed", "warning", "evt_1", "received"),
    ("ignored", "info", "evt_2", "ignored"),
    ("unreadable", "warning", None, "failed"),
]
"""Event, level, event id and status of the lines that `deliver_one_of_each` causes."""


def parse_lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def deliver_one_of_each(inbox: Inbox) -> list[DeliveryResponse]:
    """Deliver an event for each outcome that records it."""
    bodies = [
        stripe_body("evt_1"),
        stripe_body("evt_1"),
        stripe_body("evt_1", changed=True),
        stripe_body("evt_2", "charge.refunded"),
        b'{"type": "invoice.paid"}',
    ]
    return [await deliver(inbox, "stripe", body) for body in bodies]
