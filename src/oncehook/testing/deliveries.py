"""Deliveries to an inbox as a provider sends them. The real receiver verifies, claims and acks them."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from oncehook.concurrency.clock import SYSTEM
from oncehook.config.settings import SourceSettings
from oncehook.inbox import Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.providers import sign as signing
from oncehook.providers.definition import Provider, find
from oncehook.providers.draft import encode_payload, merge_headers, with_id
from oncehook.providers.sample import Sample, make_draft, sample_type
from oncehook.providers.source import Source
from oncehook.testing.keys import make_pair, shared_secret, tenant_secret

PUBLIC_HOST = "hooks.example.com"
NOT_RUNNING = "the inbox is not running: use `async with inbox.lifespan():`, or the `oncehook` fixture"


@dataclass(frozen=True)
class DeliveryResponse:
    """The HTTP response of the receiver to a delivery.

    response = await deliver(inbox, "stripe", type="invoice.paid")
    assert response.outcome == (202, "accepted")
    """

    status: int
    headers: dict[str, str]
    body: bytes
    sent: Sample | None = None  # the delivered request: pass it to `deliver` to send the same bytes again
    others: "tuple[DeliveryResponse, ...]" = ()  # the responses to the other copies

    @property
    def json(self) -> Any:
        """The body, decoded from JSON."""
        return json.loads(self.body)

    @property
    def outcome(self) -> tuple[int, str]:
        """The status code with the outcome or error code: `(202, "accepted")`, `(401, "bad_signature")`.

        For a provider that expects a special response, the second value is the text of the body.
        """
        fields = self._fields
        return self.status, fields["error"]["code"] if "error" in fields else fields.get("status", self.body.decode())

    @property
    def receipt(self) -> int | None:
        """The number of the receipt. None for a rejection, a batch of events, or a response without a receipt."""
        number: int | None = self._fields.get("receipt")
        return number

    @property
    def was_duplicate(self) -> bool:
        """Whether the delivery, or a part of it, was a duplicate."""
        return self._fields.get("status") == "duplicate" or self._fields.get("duplicate", 0) > 0

    @property
    def _fields(self) -> dict[str, Any]:
        return self.json if self.body.startswith(b"{") else {}


def sign(
    provider: str | Provider,
    body: bytes,
    secret: str,
    *,
    headers: Mapping[str, str] | None = None,
    now: float | None = None,
    public_url: str = "",
    webhook_id: str = "",
) -> dict[str, str]:
    """Return the headers of a delivery of `body`, signed with `secret` as the provider signs it.

    `headers` are headers that the signature covers or the event needs, such as `webhook-id`. They are part of the
    result. For an asymmetric signature, `secret` is the private key. `public_url` and `webhook_id` are the settings of
    the source, for providers that sign them. `now` is the time of the signature, in seconds since the epoch.

        headers = sign("stripe", body, "whsec_test")
        client.post("/webhooks/stripe", content=body, headers=headers)
    """
    definition = find(provider, {}) if isinstance(provider, str) else provider
    unsigned_headers = {"Content-Type": "application/json", **(headers or {})}
    moment = SYSTEM.now() if now is None else now
    settings = SourceSettings(public_url=public_url or None, webhook_id=webhook_id or None)
    signed, signed_body = signing.sign(
        definition, body, secret, headers=unsigned_headers, now=moment, settings=settings
    )
    if signed_body != body:
        raise ValueError(
            f"{definition.name} puts its signature into the body: use deliver(), which sends the signed body"
        )
    return signed


async def deliver(
    inbox: Inbox,
    to: str,
    payload: Any = None,
    *,
    type: str | None = None,
    id: str | None = None,
    headers: Mapping[str, str] | None = None,
    tenant: str | None = None,
    secret: str | None = None,
    tampered: bool = False,
    copies: int = 1,
    now: float | None = None,
) -> DeliveryResponse:
    """Deliver an event to a source, or to the only source of a provider, and return the response.

    `payload` is plain data or the exact bytes of the body. Without it, a realistic event of this `type` is generated.
    The `sent` of an earlier response is delivered again unchanged. `id` is the event id, and `headers` are added to the
    provider's headers or replace them. The delivery is signed with the source's secret at the current time, unless
    `secret` or `now` (seconds since the epoch) is set. With `tenant`, it goes to the address of that tenant, signed
    with the tenant's first secret. `tampered` changes the body after that. With `copies=N`, the
    same delivery arrives N times at once: the other responses are in `others`.

        response = await deliver(inbox, "stripe", {"id": "evt_1", "type": "invoice.paid", "data": {...}})
        again = await deliver(inbox, "stripe", response.sent)
        assert again.was_duplicate
    """
    if not inbox._runtime.is_running:
        raise RuntimeError(NOT_RUNNING)
    source = source_of(inbox, to)
    if tenant is not None:
        secret = secret or await tenant_secret(inbox, source, tenant)
        source = source.for_tenant(tenant, [make_pair(source.provider).verifying])  # for its address
    if source.inline:
        inbox._runtime.start_processor()  # runs inline handlers before the response
    if isinstance(payload, Sample):
        sample = payload
    else:
        sample = make_sample(inbox, source, payload, type=type, id=id, headers=headers, secret=secret, now=now)
    if tampered:
        sample = Sample(sample.headers, sample.body + b" ")
    query = (source.settings.public_url or "").partition("?")[2]
    headers, peer = _through_proxy(source, sample.headers)
    path = source.name if tenant is None else f"{source.name}/{tenant}"
    posts = [post(inbox, path, sample.body, headers, query=query, peer=peer) for _ in range(copies)]
    if copies == 1:
        return replace(await posts[0], sent=sample)
    first, *others = sorted(await asyncio.gather(*posts), key=lambda response: response.was_duplicate)
    return replace(first, sent=sample, others=tuple(others))


async def post(
    inbox: Inbox,
    path: str,
    body: bytes,
    headers: Mapping[str, str] | Iterable[tuple[bytes, bytes]],
    *,
    query: str = "",
    peer: str | None = None,
) -> DeliveryResponse:
    """Send one HTTP request to the inbox through ASGI, without a socket, and return the response.

    response = await post(inbox, "stripe", body, sign("stripe", body, "whsec_test"))
    """
    pairs = headers.items() if isinstance(headers, Mapping) else list(headers)
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/{path}",
        "query_string": query.encode("latin-1"),
        "headers": [(_latin(name).lower(), _latin(value)) for name, value in pairs],
        "client": None if peer is None else (peer, 50000),
    }
    messages: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        messages.append(message)

    await inbox(scope, receive, send)
    start, end = messages
    response_headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    return DeliveryResponse(start["status"], response_headers, end["body"])


def source_of(inbox: Inbox, to: str) -> Source:
    """Return the source with this name, or the only source of this provider."""
    if to in inbox._runtime.sources:
        return inbox._runtime.sources[to]
    of_provider = [source for source in inbox._runtime.sources.values() if source.provider_name == to]
    if len(of_provider) == 1:
        return of_provider[0]
    known = ", ".join(sorted(inbox._runtime.sources)) or "none"
    problem = "is the provider of several sources" if of_provider else "is neither a source nor a provider of one"
    raise LookupError(f"{to!r} {problem}: the sources are {known}")


# -- drafts and signatures ------------------------------------------------------------------------------------------


def make_sample(
    inbox: Inbox,
    source: Source,
    payload: Any = None,
    *,
    type: str | None = None,
    id: str | None = None,
    headers: Mapping[str, str] | None = None,
    secret: str | None = None,
    now: float | None = None,
) -> Sample:
    """Return a signed delivery to a source, with the options of `deliver`."""
    moment = inbox._runtime.clock.now() if now is None else now
    draft = _draft(source, payload, type_=type, id=id, headers=headers or {}, now=moment)
    return _sign_draft(inbox, source, draft, secret=secret, headers=headers or {}, now=moment)


def _draft(
    source: Source, payload: Any, *, type_: str | None, id: str | None, headers: Mapping[str, str], now: float
) -> Sample:
    """Return the delivery before it is signed."""
    sample = make_draft(source.provider, type_ or sample_type(source.provider), now=now, settings=source.settings)
    all_headers, body = merge_headers(sample.headers, headers), sample.body
    if payload is not None:
        body = payload if isinstance(payload, bytes) else encode_payload(source.provider, all_headers, payload)
    draft = Sample(all_headers, body)
    if id is None:
        return draft
    return with_id(source.provider, draft, id, split=source.split, natural=source.settings.id)


def _sign_draft(
    inbox: Inbox, source: Source, draft: Sample, *, secret: str | None, headers: Mapping[str, str], now: float
) -> Sample:
    if not source.is_verified:
        return draft
    key = secret or _signing_secret(inbox, source)
    settings = replace(source.settings, public_url=source.settings.public_url or _public_url(source))
    signed, body = signing.sign(source.provider, draft.body, key, headers=draft.headers, now=now, settings=settings)
    return Sample(merge_headers(signed, headers), body)


def _public_url(source: Source) -> str:
    """Return the URL that the sender signs if the source learns it from a proxy, else an empty string."""
    path = f"{source.name}/{source.tenant}".rstrip("/")
    return "" if source.proxies is None else f"https://{PUBLIC_HOST}/{path}"


def _through_proxy(source: Source, headers: Mapping[str, str]) -> tuple[Mapping[str, str], str | None]:
    """Return the headers and the peer address of a delivery, sent through a trusted proxy if the source has one."""
    if source.proxies is None:
        return headers, None
    forwarded = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": PUBLIC_HOST}
    return merge_headers(forwarded, headers), str(source.proxies.networks[0].network_address)


def _signing_secret(inbox: Inbox, source: Source) -> str:
    """Return the secret or private key that the source's sender signs with."""
    generated: str | None = getattr(inbox, "signing", {}).get(source.name)
    secret = generated or shared_secret(source)
    if secret is None:
        raise ConfigurationError(
            f"sources.{source.name} verifies with a public key, and only its sender has the private key: "
            f"pass that as secret=…, or use isolated(inbox, …), which makes a new key pair"
        )
    return secret


def _latin(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")
