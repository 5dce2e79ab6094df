"""Deliveries as a provider would send them, through the real door of an inbox: verified, claimed, acked."""

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
from oncehook.testing.keys import shared_secret

PUBLIC_HOST = "hooks.example.com"
NOT_RUNNING = "the inbox is not running: put `async with inbox.lifespan():` around it, or use the `oncehook` fixture"


@dataclass(frozen=True)
class DeliveryResponse:
    """What the door said to a delivery."""

    status: int
    headers: dict[str, str]
    body: bytes
    sent: Sample | None = None  # what was delivered: give it to `deliver` again for the same bytes
    others: "tuple[DeliveryResponse, ...]" = ()  # what the other copies got

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def outcome(self) -> tuple[int, str]:
        """The status and the word that goes with it: `(202, "accepted")`, `(401, "bad_signature")`.

        Some providers want to hear a text of their own, or nothing: for those, that is the word.
        """
        said = self._said
        return self.status, said["error"]["code"] if "error" in said else said.get("status", self.body.decode())

    @property
    def receipt(self) -> int | None:
        """The receipt's number; None for a refusal, for a body with many events, and where the provider is not told."""
        number: int | None = self._said.get("receipt")
        return number

    @property
    def was_duplicate(self) -> bool:
        """Whether the door said that it had this already, or a part of it."""
        return self._said.get("status") == "duplicate" or self._said.get("duplicate", 0) > 0

    @property
    def _said(self) -> dict[str, Any]:
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
    """The headers of a delivery of `body` as the provider would send it, signed with `secret` at `now`.

    `headers` are those that the signature covers or the event needs, `webhook-id` for instance; they are in the result
    too. For asymmetric schemes `secret` is the private key. `public_url` and `webhook_id` are the settings of the
    source, for the providers that sign them.
    """
    definition = find(provider, {}) if isinstance(provider, str) else provider
    given = {"Content-Type": "application/json", **(headers or {})}
    moment = SYSTEM.now() if now is None else now
    settings = SourceSettings(public_url=public_url or None, webhook_id=webhook_id or None)
    signed, signed_body = signing.sign(definition, body, secret, headers=given, now=moment, settings=settings)
    if signed_body != body:
        raise ValueError(f"{definition.name} puts its signature into the body: use deliver(), which sends that one")
    return signed


async def deliver(
    inbox: Inbox,
    to: str,
    payload: Any = None,
    *,
    type: str | None = None,
    id: str | None = None,
    headers: Mapping[str, str] | None = None,
    secret: str | None = None,
    tampered: bool = False,
    copies: int = 1,
    now: float | None = None,
) -> DeliveryResponse:
    """Deliver an event to a source (or to the only source of a provider) as its sender would, and return the answer.

    `payload` is plain data or the exact bytes of the body; without it, a realistic event of this `type` is made up. An
    earlier answer's `sent` is delivered again as it was. `id` is put where the provider has it, and `headers` go
    beside the provider's own and win over them. It is signed with the source's own secret at this moment, unless
    `secret` or `now` (seconds since the epoch) say otherwise; `tampered` adds a byte to the body after that. With
    `copies`, so many arrive at once: the answer is the first one's, the rest are its `others`.
    """
    if not inbox._runtime.is_running:
        raise RuntimeError(NOT_RUNNING)
    source = source_of(inbox, to)
    if source.inline:
        inbox._runtime.start_processor()  # its work is done before the answer
    if isinstance(payload, Sample):
        sent = payload
    else:
        moment = inbox._runtime.clock.now() if now is None else now
        draft = _draft(source, payload, type_=type, id=id, headers=headers or {}, now=moment)
        sent = _signed(inbox, source, draft, secret=secret, headers=headers or {}, now=moment)
    if tampered:
        sent = Sample(sent.headers, sent.body + b" ")
    query = (source.settings.public_url or "").partition("?")[2]
    headers, peer = _through_proxy(source, sent.headers)
    posts = [post(inbox, source.name, sent.body, headers, query=query, peer=peer) for _ in range(copies)]
    if copies == 1:
        return replace(await posts[0], sent=sent)
    first, *others = sorted(await asyncio.gather(*posts), key=lambda answer: answer.was_duplicate)
    return replace(first, sent=sent, others=tuple(others))


async def post(
    inbox: Inbox,
    path: str,
    body: bytes,
    headers: Mapping[str, str] | Iterable[tuple[bytes, bytes]],
    *,
    query: str = "",
    peer: str | None = None,
) -> DeliveryResponse:
    """Give the inbox one whole request, as a server would, without a socket between."""
    pairs = headers.items() if isinstance(headers, Mapping) else list(headers)
    scope = {
        "type": "http",
        "method": "POST",
        "path": f"/{path}",
        "query_string": query.encode("latin-1"),
        "headers": [(_latin(name).lower(), _latin(value)) for name, value in pairs],
        "client": None if peer is None else (peer, 50000),
    }
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    await inbox(scope, receive, send)
    start, end = said
    kept = {name.decode("latin-1"): value.decode("latin-1") for name, value in start["headers"]}
    return DeliveryResponse(start["status"], kept, end["body"])


def source_of(inbox: Inbox, to: str) -> Source:
    """The source of this name, or the only one of this provider."""
    if to in inbox._runtime.sources:
        return inbox._runtime.sources[to]
    of_provider = [source for source in inbox._runtime.sources.values() if source.provider_name == to]
    if len(of_provider) == 1:
        return of_provider[0]
    known = ", ".join(sorted(inbox._runtime.sources)) or "none"
    problem = "is the provider of several sources" if of_provider else "is neither a source nor the provider of one"
    raise LookupError(f"{to!r} {problem}: the sources are {known}")


# -- writing one ----------------------------------------------------------------------------------------------------


def _draft(
    source: Source, payload: Any, *, type_: str | None, id: str | None, headers: Mapping[str, str], now: float
) -> Sample:
    """The delivery before it is signed."""
    made = make_draft(source.provider, type_ or sample_type(source.provider), now=now, settings=source.settings)
    whole, body = merge_headers(made.headers, headers), made.body
    if payload is not None:
        body = payload if isinstance(payload, bytes) else encode_payload(source.provider, whole, payload)
    draft = Sample(whole, body)
    if id is None:
        return draft
    return with_id(source.provider, draft, id, split=source.split, natural=source.settings.id)


def _signed(
    inbox: Inbox, source: Source, draft: Sample, *, secret: str | None, headers: Mapping[str, str], now: float
) -> Sample:
    if not source.is_verified:
        return draft
    key = secret or _signing_secret(inbox, source)
    settings = replace(source.settings, public_url=source.settings.public_url or _public_url(source))
    signed, body = signing.sign(source.provider, draft.body, key, headers=draft.headers, now=now, settings=settings)
    return Sample(merge_headers(signed, headers), body)


def _public_url(source: Source) -> str:
    """The address that a sender has, where the source's proxies say it."""
    return "" if source.proxies is None else f"https://{PUBLIC_HOST}/{source.name}"


def _through_proxy(source: Source, headers: Mapping[str, str]) -> tuple[Mapping[str, str], str | None]:
    """A delivery as it comes from a proxy of the source's, where it needs one: its headers, and the peer."""
    if source.proxies is None:
        return headers, None
    said = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": PUBLIC_HOST}
    return merge_headers(said, headers), str(source.proxies.networks[0].network_address)


def _signing_secret(inbox: Inbox, source: Source) -> str:
    """What this source's sender signs with, as far as it can be known here."""
    made: str | None = getattr(inbox, "signing", {}).get(source.name)
    found = made or shared_secret(source)
    if found is None:
        raise ConfigurationError(
            f"sources.{source.name} verifies with a public key, and only its sender has the private one: "
            f"give that as secret=…, or use isolated(inbox, …), which makes a pair of its own"
        )
    return found


def _latin(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")
