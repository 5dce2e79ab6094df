"""The `forward` of a source or consumer: an HTTP address handles its events, and a 2xx response settles them.

The body is sent as it was received, with an id and an Idempotency-Key that stay the same at every attempt and replay.
With a `forward_secret` the request is signed as in Standard Webhooks. The address is called at least once per event,
outside of any transaction.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import translate
from urllib.parse import quote

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.configuration import consumer_retry
from oncehook.config.consumer_settings import CONSUMER_SLOTS, ConsumerSettings
from oncehook.config.secret import is_reference, resolve
from oncehook.handlers.event import Event, make_key
from oncehook.handlers.registry import Handler
from oncehook.http_client.circuit_breaker import PATIENCE, CircuitBreaker
from oncehook.http_client.client import HttpClient, is_sendable, parse_url
from oncehook.http_client.outcome import raise_for_status, send_and_record
from oncehook.model.errors import ConfigurationError
from oncehook.model.event import MAIN
from oncehook.model.retry import Retry, with_fields
from oncehook.providers.definition import built_in
from oncehook.providers.expressions import headers_of
from oncehook.providers.sign import sign
from oncehook.providers.source import Source

POLICY = Retry(attempts=20)
"""Enough attempts for an address that is down for a night. An open circuit breaker uses no attempt."""

TIMEOUT = 15.0
"""Seconds that one request may take, unless the source has a timeout."""


NEVER = re.compile(
    "authorization|cookie|set-cookie|host|connection|keep-alive|content-length|transfer-encoding|te|trailer|upgrade|"
    "expect|forwarded|x-forwarded-.*|x-real-ip|proxy-.*|x-api-key|idempotency-key|user-agent|webhook-.*|oncehook-.*"
)
"""Headers that are never passed on: connection headers, credentials, and headers that Oncehook sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardSettings:
    """The settings of a forward, from `[sources.NAME]` or `[consumers.NAME]`."""

    where: str  # the name of that table
    consumer: str = MAIN
    url: str
    secrets: tuple[str, ...]
    timeout: float
    concurrency: int
    headers: tuple[str, ...] | None
    retry: Retry


def source_forward(source: Source) -> ForwardSettings:
    """Return the settings of a source's own `forward`."""
    settings, where = source.settings, f"sources.{source.name}"
    if settings.forward_concurrency < 1:
        raise ConfigurationError(f"{where}.forward_concurrency is 0: no event would ever be sent; use 1 or more")
    return ForwardSettings(
        where=where,
        url=settings.forward or "",
        secrets=settings.forward_secret,
        timeout=settings.forward_timeout or settings.timeout or TIMEOUT,
        concurrency=settings.forward_concurrency,
        headers=settings.forward_headers,
        retry=with_fields(POLICY, source.retry, f"{where}.retry"),
    )


def consumer_forward(consumer: str, settings: ConsumerSettings) -> ForwardSettings:
    """Return the settings of a consumer's `forward`."""
    where = f"consumers.{consumer}"
    return ForwardSettings(
        where=where,
        consumer=consumer,
        url=settings.forward or "",
        secrets=settings.forward_secret,
        timeout=settings.forward_timeout or settings.timeout or TIMEOUT,
        concurrency=settings.concurrency or CONSUMER_SLOTS,
        headers=settings.forward_headers,
        retry=with_fields(POLICY, consumer_retry(settings, where), f"{where}.retry"),
    )


class Forward:
    """Sends the events of one source to an HTTP address, for the consumer `main` or another."""

    def __init__(
        self,
        source: Source,
        settings: ForwardSettings,
        http_client: HttpClient,
        breakers: dict[str, CircuitBreaker],
        *,
        trusted: bool,
        clock: Clock = SYSTEM,
    ) -> None:
        self.settings = settings
        self.url = settings.url
        try:
            self.origin = self.parse(self.url)
        except ValueError as error:
            raise ConfigurationError(f"{settings.where}.forward is not usable: {error}") from None
        self.source = source.name
        self.http_client = http_client
        self.trusted = trusted
        self.clock = clock
        self.timeout = settings.timeout
        self.retry = settings.retry
        self.chosen = chosen_headers(source, settings.headers, f"{settings.where}.forward_headers")
        # Each consumer has its own circuit breaker and slots, so that it takes none from another.
        name = self.origin if settings.consumer == MAIN else f"{settings.consumer}: {self.origin}"
        self.breaker = breakers.setdefault(name, CircuitBreaker(self.origin, settings.concurrency, clock))
        if not any(is_reference(secret) for secret in settings.secrets):
            self._load_signing_secrets()

    def parse(self, url: str) -> str:
        """Check the address and return its origin. Raises ValueError."""
        return parse_url(url).origin

    def load_secrets(self) -> None:
        """Read the secrets; the inbox calls this at every start. Raises ConfigurationError with the setting."""
        self._load_signing_secrets()

    def _load_signing_secrets(self) -> None:
        self.secrets = resolve_secrets(self.settings.secrets, f"{self.settings.where}.forward_secret")

    @property
    def handler(self) -> Handler:
        """The handler that the registry uses for every event of the source and consumer, as its only handler."""
        return Handler(
            source=self.source,
            consumer=self.settings.consumer,
            pattern="*",
            function=self.send,
            retry=self.retry,
            timeout=self.timeout + PATIENCE + 5,
            forwards_to=self.origin,
        )

    async def send(self, event: Event) -> None:
        """Make one attempt. Returns on a 2xx response, else raises the exception that fits the retry policy."""
        async with self.breaker.call() as call:
            sending = self.http_client.send(
                self.url, event.raw, self.headers(event), trusted=self.trusted, timeout=self.timeout
            )
            response, wait = await send_and_record(call, sending, self.clock)
        raise_for_status(self.origin, response.status, wait)

    def headers(self, event: Event) -> dict[str, str]:
        """Return the request headers: content type, passed-on headers, the event's facts and the signature."""
        stored = {name: value for name, value in event.headers.items() if is_sendable(name, value)}
        key = make_key(event._leased.consumer_scope, event.id)
        passed_on = {n: v for n, v in stored.items() if self.chosen.fullmatch(n) and not NEVER.fullmatch(n)}
        return {
            "User-Agent": "oncehook",
            **passed_on,
            "content-type": stored.get("content-type") or "application/octet-stream",
            "Oncehook-Source": event.source,
            **({"Oncehook-Tenant": event._leased.tenant} if event._leased.tenant else {}),
            **({"Oncehook-Consumer": event.consumer} if event.consumer != MAIN else {}),
            "Oncehook-Event-Id": header_text(event.id),
            "Oncehook-Event-Type": header_text(event.type),
            "Oncehook-Receipt": str(event.receipt),
            "Oncehook-Attempt": str(event.attempt),
            "Oncehook-Replays": str(event.replays),
            "Idempotency-Key": key,
            **signature_headers(key, event.raw, self.secrets, self.clock.now()),
        }


# -- headers and secrets -----------------------------------------------------------------------------------------------


def signature_headers(event_id: str, body: bytes, secrets: Sequence[str], now: float) -> dict[str, str]:
    """Return the Standard Webhooks headers, with one signature per secret. Without secrets there is no signature."""
    headers = {"webhook-id": event_id, "webhook-timestamp": str(int(now))}
    scheme = built_in("standard-webhooks")
    signatures = [sign(scheme, body, secret, headers=headers, now=now)[0]["webhook-signature"] for secret in secrets]
    return {**headers, "webhook-signature": " ".join(signatures)} if signatures else headers


def resolve_secrets(secrets: Sequence[str], where: str, owner: str = "source") -> list[str]:
    """Return the values of secrets, checked to be able to sign. Errors name the setting, never the value."""
    values = [resolve(secret, where, owner) for secret in secrets]
    try:
        signature_headers("id", b"", values, 0)
    except ValueError as error:
        raise ConfigurationError(
            f"{where} cannot sign: {error}. Expected whsec_… (24 to 64 random bytes in base64) or a private key whsk_…"
        ) from None
    return values


def chosen_headers(source: Source, patterns: Sequence[str] | None, where: str) -> re.Pattern[str]:
    """Return a pattern of the headers to pass on: `patterns`, else the headers that hold the event's facts."""
    if patterns is None:
        facts = source.provider.event
        names = source.reader.naming | headers_of(facts.object or ()) | headers_of(facts.delivery_id or ())
        patterns = ("traceparent", "tracestate", *sorted(name.decode() for name in names))
    for pattern in patterns:
        if NEVER.fullmatch(pattern.lower()):
            raise ConfigurationError(f"{where} lists {pattern}, which is never passed on")
    return re.compile("|".join(translate(pattern.lower()) for pattern in patterns) or r"(?!)")


def header_text(text: str) -> str:
    """Return a sender's text as a header value: `%` and all but printable ASCII characters are percent-encoded."""
    return quote(text, safe=" !\"#$&'()*+,/:;<=>?@[\\]^`{|}~")
