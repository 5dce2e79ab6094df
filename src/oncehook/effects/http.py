"""Effects whose target is an HTTP address: one POST each, after the commit."""

from collections.abc import Sequence
from typing import Any

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.effects.effect import EFFECT_TIMEOUT, Effect, encode
from oncehook.http_client.circuit_breaker import CircuitBreaker
from oncehook.http_client.client import HttpClient, parse_url
from oncehook.http_client.outcome import raise_for_status, send_and_record
from oncehook.model.errors import ConfigurationError, SendRefused
from oncehook.model.retry import Fail

PLACES = 8
"""How many effects are posted to one origin at once."""

MOST_TARGETS = 1000
"""How many origins of effects are remembered before those that are well are forgotten."""


class Posting:
    """Performs effects whose target is an HTTP address: POSTs their arguments as JSON, with the effect's key.

    The address comes from code or data, so it must be public, unless its origin is in the configuration's
    `effect_targets`. 2xx is done; 410 gives up; Retry-After is honoured; the rest is tried again. An origin has so many
    calls at once and is paused after failures, together with what is forwarded there.
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
        self.breakers = breakers  # of forwards
        self._own: dict[str, CircuitBreaker] = {}
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
            async with self._breaker(origin).call() as call:
                sending = self.http_client.send(effect.target, body, headers, trusted=trusted, timeout=timeout)
                response, wait = await send_and_record(call, sending, self.clock)
        except SendRefused as error:
            raise Fail(str(error)) from None
        raise_for_status(origin, response.status, wait)

    def _breaker(self, origin: str) -> CircuitBreaker:
        """Addresses may come from data, so there is no end to them: those with nothing to remember are forgotten."""
        breaker = self.breakers.get(origin) or self._own.get(origin)
        if breaker is None:
            if len(self._own) >= MOST_TARGETS:
                self._own = {name: one for name, one in self._own.items() if not one.is_idle}
            breaker = self._own[origin] = CircuitBreaker(origin, PLACES, self.clock)
        return breaker
