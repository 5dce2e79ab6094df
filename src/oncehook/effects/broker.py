"""Effects whose target is a queue, stream or topic of a broker: the relay publishes one message for each."""

from collections.abc import Sequence
from typing import Any

from oncehook.brokers.address import BrokerAddress, is_broker, parse_broker
from oncehook.brokers.pool import Publishers
from oncehook.brokers.publisher import Message, NotStored, check_broker
from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.effects.effect import EFFECT_TIMEOUT, Effect, encode
from oncehook.effects.http import SLOTS_PER_ORIGIN
from oncehook.http_client.circuit_breaker import Call, CircuitBreaker
from oncehook.model.errors import ConfigurationError, SendFailed, SendRefused
from oncehook.model.retry import Fail


class BrokerTargets:
    """The brokers in the setting `effect_targets`, with their credentials.

    A broker's client connects by itself, so Oncehook cannot check the addresses that it connects to. A target that code
    or data names is therefore used only if its origin is in the configuration.
    """

    def __init__(self, allowed: Sequence[str]) -> None:
        self._by_origin: dict[str, BrokerAddress] = {}
        for text in filter(is_broker, allowed):
            try:
                address = parse_broker(text, needs_name=False)
            except ValueError as error:
                raise ConfigurationError(f"effect_targets has an invalid address: {error}") from None
            self._by_origin[address.origin] = address

    def load_secrets(self) -> None:
        """Read the passwords. Raises ConfigurationError if one is not set, or if a client library is missing."""
        for origin, address in self._by_origin.items():
            check_broker(address, "effect_targets")
            self._by_origin[origin] = address.resolve_password("effect_targets")

    def find(self, address: BrokerAddress) -> BrokerAddress | None:
        """The address with the credentials of its origin, or None if the configuration does not have that origin."""
        known = self._by_origin.get(address.origin)
        return None if known is None else address.with_credentials_of(known)


class EffectPublisher:
    """Runs effects whose target is a broker's address. The broker's acknowledgement completes the effect.

    Each origin gets up to SLOTS_PER_ORIGIN concurrent messages and has a circuit breaker, which it shares with forwards
    to the same origin.
    """

    def __init__(
        self,
        publishers: Publishers,
        targets: BrokerTargets,
        breakers: dict[str, CircuitBreaker],
        clock: Clock = SYSTEM,
    ) -> None:
        self.publishers = publishers
        self.targets = targets
        self.clock = clock
        self.breakers = breakers  # by origin, shared with forwards
        self._own_breakers: dict[str, CircuitBreaker] = {}

    async def send(self, effect: Effect, /, **args: Any) -> None:
        """Publish the arguments of one effect as a JSON object. Raises Fail if it must not be retried."""
        await self._publish(effect, encode(args))

    async def publish(self, effect: Effect, payload: Any) -> None:
        """Publish the payload of one message as JSON. Raises Fail if it must not be retried."""
        await self._publish(effect, encode(payload))

    async def _publish(self, effect: Effect, text: str) -> None:
        address = self._address(effect.target)
        message = Message(
            key=effect.idempotency_key,
            body=text.encode(),
            headers={
                "content-type": "application/json",
                "Idempotency-Key": effect.idempotency_key,
                "Oncehook-Source": effect.source,
                "Oncehook-Attempt": str(effect.attempt),
            },
        )
        async with self._breaker(address.origin).call() as call:
            await publish_and_record(call, self.publishers, address, message, EFFECT_TIMEOUT / 2)

    def _address(self, target: str) -> BrokerAddress:
        try:
            address = parse_broker(target)
        except ValueError as error:
            raise Fail(f"the effect's address is not valid: {error}") from None
        allowed = self.targets.find(address)
        if allowed is None:
            raise Fail(f"{address.origin} is not in effect_targets: only a broker in the configuration file is used")
        return allowed

    def _breaker(self, origin: str) -> CircuitBreaker:
        breaker = self.breakers.get(origin) or self._own_breakers.get(origin)
        if breaker is None:
            breaker = self._own_breakers[origin] = CircuitBreaker(origin, SLOTS_PER_ORIGIN, self.clock)
        return breaker


async def publish_and_record(
    call: Call,
    publishers: Publishers,
    address: BrokerAddress,
    message: Message,
    timeout: float,  # noqa: ASYNC109  # errors name this limit
) -> None:
    """Publish a message, and record success or failure on the circuit breaker. Returns after the acknowledgement.

    A broker that rejects a message is healthy. Raises Fail for a message that no later attempt can send.
    """
    try:
        await publishers.publish(address, message, timeout=timeout)
    except SendRefused as error:
        raise Fail(str(error)) from None
    except SendFailed:
        call.failed()
        raise
    except NotStored:
        call.succeeded()
        raise
    call.succeeded()
