"""Claims for a store, and signed bodies for the receiver."""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from oncehook.model.claim import Claim
from oncehook.model.lease import Leased
from oncehook.model.states import State
from oncehook.testing import sign

STRIPE_SECRET = "whsec_test"


EVENT_KEYS = (
    "receipt", "source", "tenant", "consumer", "provider", "event_id", "type", "object_id", "occurred_at",
    "received_at", "status", "attempts", "next_attempt_at", "processed_at", "failed_at", "last_error",
    "duplicates", "correlation_id", "delivery_id", "origin", "replays",
)  # fmt: skip
"""The keys of an event as JSON."""


class NotAState(StrEnum):
    """Values that no database may accept as a status, in a row that is otherwise valid."""

    DONE = "done"
    LOUD = "RECEIVED"
    LONG = "received "


NO_STATE = NotAState.DONE


def make_claim(event_id: str = "evt_1", **changes: Any) -> Claim:
    """A claim as the receiver makes it. Its fingerprint is that of its body unless `changes` has one."""
    body = changes.pop("body", json.dumps({"id": event_id}).encode())
    facts: dict[str, Any] = {
        "source": "stripe",
        "provider": "stripe",
        "event_id": event_id,
        "type": "invoice.paid",
        "object_id": "in_1",
        "delivery_id": None,
        "occurred_at": None,
        "correlation_id": None,
        "status": State.RECEIVED,
        "last_error": None,
        "fingerprint": hashlib.sha256(body).digest(),
        "body": body,
        "headers": '{"content-type":"application/json"}',
    }
    return Claim(**facts | changes)


def make_leased(**changes: Any) -> Leased:
    """A receipt as a worker leases it, with the payload `{}`."""
    moment = datetime(2026, 11, 15, tzinfo=UTC)
    facts: dict[str, Any] = {
        "receipt": 1,
        "lease": 1,
        "attempt": 1,
        "source": "stripe",
        "provider": "stripe",
        "event_id": "evt_1",
        "type": "customer.subscription.updated",
        "object_id": "sub_1",
        "occurred_at": moment,
        "received_at": moment,
        "delivery_id": None,
        "correlation_id": None,
        "replays": 0,
        "body": b"{}",
        "headers": "{}",
        "object": None,
    }
    return Leased(**facts | changes)


def stripe_body(event_id: str = "evt_1", type_: str = "invoice.paid", **more: Any) -> bytes:
    event = {"id": event_id, "type": type_, "created": 1763200000, "data": {"object": {"id": "in_1"}}, **more}
    return json.dumps(event).encode()


def stripe_headers(body: bytes, secret: str = STRIPE_SECRET, now: float | None = None) -> dict[str, str]:
    """The headers of a delivery that Stripe signs now."""
    return sign("stripe", body, secret, now=now)


def github_headers(body: bytes, delivery: str, secret: str = "github-secret", event: str = "push") -> dict[str, str]:
    return sign("github", body, secret, headers={"X-GitHub-Delivery": delivery, "X-GitHub-Event": event})


Rows = Callable[[str], list[tuple[Any, ...]]]
"""Returns the rows of a statement on the test's database, independent of the code under test."""
