"""The sources of the fuzzer, and deliveries to them: authentic, forged, repeated and unreadable."""

import base64
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from oncehook import Inbox

SECRET = "whsec_of_the_fuzzer_0123456789"
ADDRESS = "https://hooks.example/webhooks/square"
TENANTS = ("acme", "late")
MAX_BODY = 4096
LARGE_BODY = 600_000  # of the source `large`: larger bodies than 256 KiB are verified in a thread


def add_sources(inbox: Inbox) -> Inbox:
    """Add one source of each kind that the receiver treats in its own way."""
    secrets = [SECRET]
    inbox.source("stripe", secrets=secrets, types=["invoice.*"], max_body=MAX_BODY)
    inbox.source("large", provider="stripe", secrets=secrets, max_body=LARGE_BODY)
    inbox.source("github", secrets=secrets)
    inbox.source("square", secrets=secrets, public_url=ADDRESS)
    inbox.source("open", provider="stripe", verify="none")
    inbox.source("slack", secrets=secrets)  # has a handshake, so it is never direct

    async def secrets_for(tenant: str) -> Sequence[str] | None:
        return secrets if tenant in TENANTS else None

    inbox.source("shared", provider="stripe", secrets_for=secrets_for)
    return inbox


@dataclass
class Signed:
    """A delivery before it is written as a request."""

    path: str
    body: bytes
    headers: list[tuple[str, str]]
    is_authentic: bool


def _mac(message: bytes, secret: str = SECRET) -> "hmac.HMAC":
    return hmac.new(secret.encode(), message, "sha256")


def stripe_signature(body: bytes, now: int, secret: str = SECRET) -> tuple[str, str]:
    mac = _mac(b"%d.%s" % (now, body), secret).hexdigest()
    return "Stripe-Signature", f"t={now},v1={mac}"


def _sign(source: str, body: bytes, query: str, now: int, secret: str) -> list[tuple[str, str]]:
    if source == "github":
        return [("X-Hub-Signature-256", f"sha256={_mac(body, secret).hexdigest()}")]
    if source == "square":
        url = f"{ADDRESS}?{query}" if query else ADDRESS
        mac = base64.b64encode(_mac(url.encode("latin-1") + body, secret).digest()).decode()
        return [("X-Square-HmacSha256-Signature", mac)]
    if source == "slack":
        mac = _mac(b"v0:%d:%s" % (now, body), secret).hexdigest()
        return [("X-Slack-Request-Timestamp", str(now)), ("X-Slack-Signature", f"v0={mac}")]
    return [stripe_signature(body, now, secret)]


def make_body(random: Random, source: str, event_id: str) -> bytes:
    type_ = random.choice(["invoice.paid", "invoice.created", "charge.refunded"])
    event: dict[str, Any] = {"id": event_id, "type": type_, "data": {"object": {"id": "in_1"}}}
    if source == "square":
        event |= {"event_id": event_id, "merchant_id": "m"}
    if source == "slack":
        event |= {"type": "event_callback", "event_id": event_id, "event": {"type": "message"}}
    if random.random() < 0.1:
        size = random.choice([100, 3000, MAX_BODY]) if source != "large" else random.choice([70_000, 300_000])
        event["filler"] = "x" * size
    if random.random() < 0.05:
        event["odd"] = random.choice(["\u0000", "\ud800", "\u2028", "é", "\x1b[31m"])
    return json.dumps(event).encode()


SOURCES = ["stripe"] * 8 + ["github"] * 3 + ["square"] * 3 + ["open", "slack", "large"]
UNREADABLE = [b'["%s"]', b'"%s"', b'{"n":"%s"}', b'{"id":"%s"', b'{"id":1,"id":"%s"}', b"\xff\xfe%s", b"a=%s&b=1"]
SHARED = ["shared/acme", "shared/late", "shared/none", "shared", "shared/acme/more", "shared/%61cme"]


def make_delivery(random: Random, event_id: str, now: int) -> Signed:
    """One delivery. Most are authentic."""
    source = random.choice(SOURCES) if random.random() < 0.9 else random.choice(SHARED)
    kind = source.partition("/")[0]
    query = random.choice(["a=1", "a=1&b=%20", "x#y", "?", "a=é", "%"]) if random.random() < 0.15 else ""
    if kind == "square" and random.random() < 0.4:
        query = random.choice(["a=1", "a=1&b=2", "%41=b", "a?b", "a#b", "#", "a=%23"])
    body = make_body(random, kind, event_id)
    secret = SECRET if random.random() < 0.9 else "whsec_of_somebody_else_0123456"
    if random.random() < 0.06:
        body = random.choice(UNREADABLE) % event_id.encode()
    elif random.random() < 0.01 and kind != "open":
        body, secret = b"", "whsec_of_somebody_else_0123456"
    when = now if random.random() < 0.97 else now + random.choice([-301, -10_000, 400, 10**9])
    signed = _sign(kind, body, query, when, secret)
    headers = [("Content-Type", "application/json"), *signed]
    if kind == "github":
        headers += [("X-GitHub-Delivery", event_id), ("X-GitHub-Event", "push")]
    path = f"/webhooks/{source}" + (f"?{query}" if query else "")
    return Signed(path, body, headers, secret == SECRET)
