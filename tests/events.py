"""Events of a test's own making: claims for a store, signed deliveries for the door, and the door's answer."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from oncehook import Inbox
from oncehook.providers import built_in
from oncehook.receipt import Claim, State
from oncehook.sign import sign

STRIPE_SECRET = "whsec_test"
Headers = list[tuple[bytes, bytes]]


class NotAState(StrEnum):
    """What no database may take for a status: the poison of a row that is otherwise sound."""

    DONE = "done"
    LOUD = "RECEIVED"
    LONG = "received "


NO_STATE = NotAState.DONE


def make_claim(event_id: str = "evt_1", **changes: Any) -> Claim:
    """A claim as the door offers it; its fingerprint is that of its body unless given."""
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


def stripe_body(event_id: str = "evt_1", type_: str = "invoice.paid", **more: Any) -> bytes:
    event = {"id": event_id, "type": type_, "created": 1763200000, "data": {"object": {"id": "in_1"}}, **more}
    return json.dumps(event).encode()


def stripe_headers(body: bytes, secret: str = STRIPE_SECRET, now: float | None = None) -> dict[str, str]:
    """The headers of a delivery that Stripe signed now."""
    given = {"Content-Type": "application/json"}
    signed, _ = sign(built_in("stripe"), body, secret, headers=given, now=time.time() if now is None else now)
    return signed


def github_headers(body: bytes, delivery: str, secret: str = "github-secret", event: str = "push") -> dict[str, str]:
    given = {"Content-Type": "application/json", "X-GitHub-Delivery": delivery, "X-GitHub-Event": event}
    signed, _ = sign(built_in("github"), body, secret, headers=given, now=time.time())
    return signed


def as_bytes(headers: Mapping[str, str]) -> Headers:
    """Headers as ASGI has them."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


@dataclass(frozen=True)
class Answer:
    """What the door said."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def outcome(self) -> tuple[int, str]:
        """The status and the word that goes with it."""
        answer = self.json
        return self.status, answer["error"]["code"] if "error" in answer else answer["status"]


async def deliver(inbox: Inbox, source: str, body: bytes, headers: Mapping[str, str] | Headers) -> Answer:
    """Give the inbox one whole request, as a server would, without a socket between."""
    pairs = headers if isinstance(headers, list) else as_bytes(headers)
    scope = {"type": "http", "method": "POST", "path": f"/{source}", "query_string": b"", "headers": pairs}
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    await inbox(scope, receive, send)
    start, end = said
    kept = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], kept, end["body"])


async def deliver_stripe(inbox: Inbox, body: bytes, **signing: Any) -> Answer:
    """A delivery of Stripe's to the source `stripe`."""
    return await deliver(inbox, "stripe", body, stripe_headers(body, **signing))


Rows = Callable[[str], list[tuple[Any, ...]]]
"""Asks the database of a test, beside everything that is under test."""
