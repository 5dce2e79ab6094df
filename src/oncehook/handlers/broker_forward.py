"""A `forward` to a broker: the event becomes a message, and the broker's acknowledgement settles it.

The body is sent as it was received, with the headers that a request to an HTTP address would have. The message's key is
the Idempotency-Key: the same at every attempt and replay. The message is published at least once per event, outside of
any transaction.
"""

from oncehook.brokers.address import BrokerAddress, is_broker, parse_broker
from oncehook.brokers.pool import Publishers
from oncehook.brokers.publisher import Message, check_broker
from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.effects.broker import BrokerTargets, publish_and_record
from oncehook.handlers.event import Event
from oncehook.handlers.forward import Forward, ForwardSettings
from oncehook.http_client.circuit_breaker import CircuitBreaker
from oncehook.http_client.client import HttpClient, parse_url
from oncehook.model.errors import ConfigurationError
from oncehook.providers.source import Source


class BrokerForward(Forward):
    """Publishes the events of one source to a broker.

    An address from code or from the database is used only if its origin is in `effect_targets`, which has its
    credentials. An address in the configuration file may have its own.
    """

    address: BrokerAddress

    def __init__(
        self,
        source: Source,
        settings: ForwardSettings,
        http_client: HttpClient,
        breakers: dict[str, CircuitBreaker],
        *,
        publishers: Publishers,
        targets: BrokerTargets,
        trusted: bool,
        clock: Clock = SYSTEM,
    ) -> None:
        self.publishers = publishers
        self.targets = targets
        super().__init__(source, settings, http_client, breakers, trusted=trusted, clock=clock)
        if not trusted:
            self._check_allowed()

    def parse(self, url: str) -> str:
        self.address = parse_broker(url)
        return self.address.origin

    def _check_allowed(self) -> None:
        where = f"{self.settings.where}.forward"
        if self.address.has_credentials:
            raise ConfigurationError(f"{where} contains credentials: write them in effect_targets, in oncehook.toml")
        if self.targets.find(self.address) is None:
            raise ConfigurationError(
                f"{where}: {self.origin} is not in effect_targets, and only a broker that oncehook.toml names is used"
            )

    def load_secrets(self) -> None:
        super().load_secrets()
        where = f"{self.settings.where}.forward"
        check_broker(self.address, where)
        allowed = None if self.address.has_credentials else self.targets.find(self.address)
        self.address = allowed or self.address.resolve_password(where)

    async def send(self, event: Event) -> None:
        """Make one attempt. Returns after the broker's acknowledgement, else raises."""
        headers = self.headers(event)
        message = Message(
            key=headers["Idempotency-Key"],
            body=event.raw,
            headers={name: value for name, value in headers.items() if name != "User-Agent"},
            group=event.object_id or event.id,
        )
        async with self.breaker.call() as call:
            await publish_and_record(call, self.publishers, self.address, message, self.timeout)


def forward_origin(url: str) -> str:
    """The origin of a target: the part that may be shown. Raises ValueError."""
    return parse_broker(url).origin if is_broker(url) else parse_url(url).origin
