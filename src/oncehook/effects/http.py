"""Effects whose target is an HTTP address: the relay sends one POST request for each."""

from collections.abc import Sequence
from typing import Any

from oncehook.brokers.address import is_broker
from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.effects.effect import EFFECT_TIMEOUT, Effect, encode
from oncehook.http_client.circuit_breaker import CircuitBreaker
from oncehook.http_client.client import HttpClient, parse_url
from oncehook.http_client.outcome import raise_for_status, send_and_record
from oncehook.model.errors import ConfigurationError, SendRefused
from oncehook.model.retry import Fail

SLOTS_PER_ORIGIN = 8
"""The number of concurrent requests to one origin."""

MAX_ORIGINS = 1000
"""The number of circuit breakers that are kept before idle ones are removed."""


class EffectPoster:
    """Runs effects whose target is an HTTP address: POSTs their arguments as JSON, with the idempotency key.

    The address comes from code or data, so it must be public, unless its origin is in the configuration's
    `effect_targets`. A 2xx response completes the effect and 410 ends it as failed; other failures are retried, and
    Retry-After is followed. Each origin gets up to SLOTS_PER_ORIGIN concurrent requests and has a circuit breaker,
    which it shares with forwards to the same origin.
    """

    def __init__(
        self,
        http_client: HttpClient,
        allowed: Sequence[str],
        breakers: dict[str, CircuitBreaker],
        clock: Clock = SYSTEM,
    ) -> None:
        self.http_client = http_client
        self.clock = clock
        self.breakers = breakers  # by origin, shared with forwards
        self._own_breakers: dict[str, CircuitBreaker] = {}
        try:
            self.allowed = {parse_url(url).origin for url in allowed if not is_broker(url)}
        except ValueError as error:
            raise ConfigurationError(f"effect_targets has an invalid address: {error}") from None

    async def post(self, effect: Effect, /, **args: Any) -> None:
        """Send the request of one effect. Raises Fail if it must not be retried."""
        try:
            origin = parse_url(effect.target).origin
        except ValueError as error:
            raise Fail(f"the effect's address is not valid: {error}") from None
        headers = {
            "User-Agent": "oncehook",
            "content-type": "application/json",
            "Idempotency-Key": effect.idempotency_key,
            "Oncehook-Source": effect.source,
            "Oncehook-Attempt": str(effect.attempt),
        }
        body = encode(args).encode()  # byte for byte as recorded
        trusted, timeout = origin in self.allowed, EFFECT_TIMEOUT / 2
        try:
            async with self._breaker(origin).call() as call:
                sending = self.http_client.send(effect.target, body, headers, trusted=trusted, timeout=timeout)
                response, wait = await send_and_record(call, sending, self.clock)
        except SendRefused as error:
            raise Fail(str(error)) from None
        raise_for_status(origin, response.status, wait)

    def _breaker(self, origin: str) -> CircuitBreaker:
        """The circuit breaker of an origin. Addresses may come from data, so idle circuit breakers are removed."""
        breaker = self.breakers.get(origin) or self._own_breakers.get(origin)
        if breaker is None:
            if len(self._own_breakers) >= MAX_ORIGINS:
                self._own_breakers = {name: own for name, own in self._own_breakers.items() if not own.is_idle}
            breaker = self._own_breakers[origin] = CircuitBreaker(origin, SLOTS_PER_ORIGIN, self.clock)
        return breaker
