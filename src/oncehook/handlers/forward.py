"""A source's `forward`: the handler of its receipts is an HTTP address, and 2xx from there is `processed`.

The body goes out as it was received, with an id and an Idempotency-Key that are the same at every attempt and replay,
signed by Standard Webhooks if there is a `forward_secret`. The target is called outside any transaction, at least once.
"""

import re
from collections.abc import Awaitable, Sequence
from datetime import UTC
from fnmatch import translate
from typing import Any
from urllib.parse import quote

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.secret import is_reference, resolve
from oncehook.effects.effect import EFFECT_TIMEOUT, Effect, encode
from oncehook.handlers.event import Event, make_key
from oncehook.handlers.registry import Handler
from oncehook.http_client.circuit_breaker import PATIENCE, Call, Target
from oncehook.http_client.client import Outgoing, is_sendable, parse_url
from oncehook.http_client.exchange import Answer
from oncehook.model.errors import ConfigurationError, OncehookError, SendFailed, SendRefused
from oncehook.model.retry import Fail, Retry, RetryLater, with_fields
from oncehook.providers.definition import built_in
from oncehook.providers.expressions import headers_of
from oncehook.providers.sign import sign
from oncehook.providers.source import Source

POLICY = Retry(attempts=20)
"""A target may be down for a night. Waiting while it is paused uses none of them."""

TIMEOUT = 15.0
"""Seconds that one request may take, where the source does not say."""

PLACES = 8
"""How many effects are posted to one origin at once."""

MOST_TARGETS = 1000
"""How many origins of effects are remembered before those that are well are forgotten."""

LONGEST_WAIT = 3600.0
"""The most of a Retry-After that is honoured, in seconds."""

NEVER = re.compile(
    "authorization|cookie|set-cookie|host|connection|keep-alive|content-length|transfer-encoding|te|trailer|upgrade|"
    "expect|forwarded|x-forwarded-.*|x-real-ip|proxy-.*|x-api-key|idempotency-key|user-agent|webhook-.*|oncehook-.*"
)
"""Headers that are never passed on: those of one connection, credentials, and those that are set here."""


class NotTaken(OncehookError):
    """The target answered, and not with 2xx."""


class Forward:
    """Sends the events of one source to its target."""

    def __init__(
        self, source: Source, outgoing: Outgoing, targets: dict[str, Target], *, trusted: bool, clock: Clock = SYSTEM
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
        self.outgoing = outgoing
        self.trusted = trusted
        self.clock = clock
        self.timeout = settings.forward_timeout or settings.timeout or TIMEOUT
        self.retry = with_fields(POLICY, source.retry, f"{where}.retry")
        self.forward_secret = settings.forward_secret
        self.chosen = chosen_headers(source, f"{where}.forward_headers")
        self.target = targets.setdefault(self.origin, Target(self.origin, settings.forward_concurrency, clock))
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
        async with self.target.call() as call:
            sending = self.outgoing.send(
                self.url, event.raw, self.headers(event), trusted=self.trusted, timeout=self.timeout
            )
            answer, wait = await tell(call, sending, self.clock)
        judge(self.origin, answer.status, wait)

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


class Posting:
    """Performs effects whose target is an HTTP address: POSTs their arguments as JSON, with the effect's key.

    The address comes from code or data, so it must be public, unless its origin is in the configuration's
    `effect_targets`. 2xx is done; 410 gives up; Retry-After is honoured; the rest is tried again. An origin has so many
    calls at once and is paused after failures, together with what is forwarded there.
    """

    def __init__(
        self, outgoing: Outgoing, allowed: Sequence[str], targets: dict[str, Target], clock: Clock = SYSTEM
    ) -> None:
        self.outgoing = outgoing
        self.clock = clock
        self.targets = targets  # of forwards
        self._own: dict[str, Target] = {}
        try:
            self.allowed = {parse_url(url).origin for url in allowed}
        except ValueError as error:
            raise ConfigurationError(f"effect_targets is not usable: {error}") from None

    async def perform(self, effect: Effect, /, **args: Any) -> None:
        try:
            origin = parse_url(effect.target).origin
        except ValueError as error:
            raise Fail(f"the effect's address is not usable: {error}") from None
        headers = {
            "User-Agent": "oncehook",
            "content-type": "application/json",
            "Idempotency-Key": effect.idempotency_key,
            "Oncehook-Source": effect.source,
            "Oncehook-Attempt": str(effect.attempt),
        }
        body = encode(args).encode()  # as it was recorded
        trusted, timeout = origin in self.allowed, EFFECT_TIMEOUT / 2
        try:
            async with self._target(origin).call() as call:
                sending = self.outgoing.send(effect.target, body, headers, trusted=trusted, timeout=timeout)
                answer, wait = await tell(call, sending, self.clock)
        except SendRefused as error:
            raise Fail(str(error)) from None
        judge(origin, answer.status, wait)

    def _target(self, origin: str) -> Target:
        """Addresses may come from data, so there is no end to them: those with nothing to remember are forgotten."""
        target = self.targets.get(origin) or self._own.get(origin)
        if target is None:
            if len(self._own) >= MOST_TARGETS:
                self._own = {name: one for name, one in self._own.items() if not one.is_idle}
            target = self._own[origin] = Target(origin, PLACES, self.clock)
        return target


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


# -- what came of it ------------------------------------------------------------------------------------------------


async def tell(call: Call, sending: Awaitable[Answer], clock: Clock) -> tuple[Answer, float | None]:
    """The answer, and how long it asks to wait; the target is told how it does. A refusal says nothing of it."""
    try:
        answer = await sending
    except SendRefused:
        raise
    except SendFailed:
        call.failed()
        raise
    wait = retry_after(answer, clock.now())
    if answer.status == 429 or answer.status >= 500:
        call.failed(wait=wait)
    else:
        call.succeeded()
    return answer, wait


def judge(origin: str, status: int, wait: float | None) -> None:
    """2xx is success. Of the body nothing is told: it may quote the event."""
    if 200 <= status < 300:
        return
    if status == 410:
        raise Fail(f"{origin} answered 410: it is gone, and this event is not tried again")
    if wait is not None:
        raise RetryLater(f"{origin} answered {status} and asked to wait", after=wait)
    if 300 <= status < 400:
        raise NotTaken(f"{origin} answered {status}: redirects are not followed, write the final address")
    raise NotTaken(f"{origin} answered {status}")


def retry_after(answer: Answer, now: float) -> float | None:
    """How long a target that is too busy asks to be left alone: seconds or a date, at least 1 s, at most an hour."""
    if answer.status not in (429, 503):
        return None
    told = answer.headers.get("retry-after", "").strip()
    if re.fullmatch("[0-9]{1,9}", told):
        wait = float(told)
    else:
        from email.utils import parsedate_to_datetime  # most targets answer in seconds, and `email` is 14 modules

        try:
            moment = parsedate_to_datetime(told)
            wait = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp() - now
        except (ValueError, TypeError, OverflowError, IndexError):
            return None
    return min(max(wait, 1.0), LONGEST_WAIT)
