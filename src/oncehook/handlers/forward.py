"""A source's `forward`: the handler of its receipts is an HTTP address, and 2xx from there is `processed`.

The body goes out as it was received, with an id and an Idempotency-Key that are the same at every attempt and replay,
signed by Standard Webhooks if there is a `forward_secret`. The target is called outside any transaction, at least once.
"""

import re
from collections.abc import Sequence
from fnmatch import translate
from urllib.parse import quote

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.secret import is_reference, resolve
from oncehook.handlers.event import Event, make_key
from oncehook.handlers.registry import Handler
from oncehook.http_client.circuit_breaker import PATIENCE, CircuitBreaker
from oncehook.http_client.client import HttpClient, is_sendable, parse_url
from oncehook.http_client.outcome import raise_for_status, send_and_record
from oncehook.model.errors import ConfigurationError
from oncehook.model.retry import Retry, with_fields
from oncehook.providers.definition import built_in
from oncehook.providers.expressions import headers_of
from oncehook.providers.sign import sign
from oncehook.providers.source import Source

POLICY = Retry(attempts=20)
"""A target may be down for a night. Waiting while it is paused uses none of them."""

TIMEOUT = 15.0
"""Seconds that one request may take, where the source does not say."""

NEVER = re.compile(
    "authorization|cookie|set-cookie|host|connection|keep-alive|content-length|transfer-encoding|te|trailer|upgrade|"
    "expect|forwarded|x-forwarded-.*|x-real-ip|proxy-.*|x-api-key|idempotency-key|user-agent|webhook-.*|oncehook-.*"
)
"""Headers that are never passed on: those of one connection, credentials, and those that are set here."""


class Forward:
    """Sends the events of one source to its target."""

    def __init__(
        self,
        source: Source,
        http_client: HttpClient,
        breakers: dict[str, CircuitBreaker],
        *,
        trusted: bool,
        clock: Clock = SYSTEM,
    ) -> None:
        settings, where = source.settings, f"sources.{source.name}"
        self.url = settings.forward or ""
        try:
            self.origin = parse_url(self.url).origin
        except ValueError as error:
            raise ConfigurationError(f"{where}.forward is not usable: {error}") from None
        if settings.forward_concurrency < 1:
            raise ConfigurationError(f"{where}.forward_concurrency is 0: nothing would ever be sent")
        self.source = source.name
        self.http_client = http_client
        self.trusted = trusted
        self.clock = clock
        self.timeout = settings.forward_timeout or settings.timeout or TIMEOUT
        self.retry = with_fields(POLICY, source.retry, f"{where}.retry")
        self.forward_secret = settings.forward_secret
        self.chosen = chosen_headers(source, f"{where}.forward_headers")
        self.breaker = breakers.setdefault(
            self.origin, CircuitBreaker(self.origin, settings.forward_concurrency, clock)
        )
        if not any(is_reference(secret) for secret in self.forward_secret):
            self.load_secrets()

    def load_secrets(self) -> None:
        """Resolve what signs; the inbox calls it at every start. Raises ConfigurationError, which names the place."""
        self.secrets = usable(self.forward_secret, f"sources.{self.source}.forward_secret")

    @property
    def handler(self) -> Handler:
        """It in the registry: for every event of the source, with no other handler beside it."""
        return Handler(
            source=self.source,
            pattern="*",
            function=self.send,
            retry=self.retry,
            timeout=self.timeout + PATIENCE + 5,
            forwards_to=self.origin,
        )

    async def send(self, event: Event) -> None:
        """One attempt. Returns on 2xx; for anything else it raises what tells the policy what to do."""
        async with self.breaker.call() as call:
            sending = self.http_client.send(
                self.url, event.raw, self.headers(event), trusted=self.trusted, timeout=self.timeout
            )
            response, wait = await send_and_record(call, sending, self.clock)
        raise_for_status(self.origin, response.status, wait)

    def headers(self, event: Event) -> dict[str, str]:
        """What goes with the body: its content type, the chosen headers of the delivery, the event's facts, signed."""
        kept = {name: value for name, value in event.headers.items() if is_sendable(name, value)}
        key = make_key(event.source, event.id)
        passed_on = {n: v for n, v in kept.items() if self.chosen.fullmatch(n) and not NEVER.fullmatch(n)}
        return {
            "User-Agent": "oncehook",
            **passed_on,
            "content-type": kept.get("content-type") or "application/octet-stream",
            "Oncehook-Source": event.source,
            "Oncehook-Event-Id": plain(event.id),
            "Oncehook-Event-Type": plain(event.type),
            "Oncehook-Receipt": str(event.receipt),
            "Oncehook-Attempt": str(event.attempt),
            "Oncehook-Replays": str(event.replays),
            "Idempotency-Key": key,
            **signed(key, event.raw, self.secrets, self.clock.now()),
        }


# -- what is sent ---------------------------------------------------------------------------------------------------


def signed(event_id: str, body: bytes, secrets: Sequence[str], now: float) -> dict[str, str]:
    """The headers of Standard Webhooks: a signature by each secret, none without one."""
    headers = {"webhook-id": event_id, "webhook-timestamp": str(int(now))}
    scheme = built_in("standard-webhooks")
    by_each = [sign(scheme, body, secret, headers=headers, now=now)[0]["webhook-signature"] for secret in secrets]
    return {**headers, "webhook-signature": " ".join(by_each)} if by_each else headers


def usable(secrets: Sequence[str], where: str, what: str = "source") -> list[str]:
    """The values of secrets that can sign. Errors name the place, never the value."""
    values = [resolve(secret, where, what) for secret in secrets]
    try:
        signed("id", b"", values, 0)
    except ValueError as error:
        raise ConfigurationError(
            f"{where} cannot sign: {error}. Expected whsec_… (24 to 64 random bytes in base64) or a private key whsk_…"
        ) from None
    return values


def chosen_headers(source: Source, where: str) -> re.Pattern[str]:
    """Which headers of the delivery go on: `forward_headers`, else those that the provider's facts are in."""
    patterns = source.settings.forward_headers
    if patterns is None:
        facts = source.provider.event
        named = source.reader.naming | headers_of(facts.object or ()) | headers_of(facts.delivery_id or ())
        patterns = ("traceparent", "tracestate", *sorted(name.decode() for name in named))
    for pattern in patterns:
        if NEVER.fullmatch(pattern.lower()):
            raise ConfigurationError(f"{where} names {pattern}, which is never passed on")
    return re.compile("|".join(translate(pattern.lower()) for pattern in patterns) or r"(?!)")


def plain(text: str) -> str:
    """A sender's text as a header can carry it: what is not printable ASCII is percent-encoded, and so is %."""
    return quote(text, safe=" !\"#$&'()*+,/:;<=>?@[\\]^`{|}~")
