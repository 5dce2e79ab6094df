"""Adds the forwards of sources and consumers to the handlers of an inbox."""

from typing import TYPE_CHECKING

from oncehook.brokers.address import is_broker
from oncehook.handlers.broker_forward import BrokerForward
from oncehook.handlers.forward import Forward, ForwardSettings, consumer_forward, source_forward
from oncehook.http_client.circuit_breaker import CircuitBreaker
from oncehook.providers.source import Source

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


def forward_source(runtime: "Runtime", source: Source, *, trusted: bool) -> None:
    """Let the `forward` of a source handle its events for the consumer `main`."""
    _add(runtime, source.name, source, source_forward(source), trusted)


def forward_to_consumers(runtime: "Runtime", source: Source) -> None:
    """Let the `forward` of every consumer that subscribes to a source handle its events."""
    for name in runtime.consumers.settings:
        forward_to_consumer(runtime, name, source)


def forward_to_consumer(runtime: "Runtime", consumer: str, source: Source) -> None:
    """Let a consumer's `forward` handle the events of a source, if it has one and subscribes to the source."""
    consumers, settings = runtime.consumers, runtime.consumers.settings[consumer]
    key = f"{consumer}:{source.name}"
    if settings.forward is not None and consumers.subscribes(consumer, source.name) and key not in runtime.forwards:
        _add(runtime, key, source, consumer_forward(consumer, settings), consumer in consumers.in_file)


def make_forward(
    runtime: "Runtime",
    source: Source,
    settings: ForwardSettings,
    *,
    breakers: dict[str, CircuitBreaker],
    trusted: bool,
) -> Forward:
    """Make the forward to an HTTP address or to a broker. Raises ConfigurationError if its address cannot be used."""
    http_client, clock = runtime.http_client, runtime.clock
    if not is_broker(settings.url):
        return Forward(source, settings, http_client, breakers, trusted=trusted, clock=clock)
    return BrokerForward(
        source,
        settings,
        http_client,
        breakers,
        publishers=runtime.publishers,
        targets=runtime.broker_targets,
        trusted=trusted,
        clock=clock,
    )


def _add(runtime: "Runtime", key: str, source: Source, settings: ForwardSettings, trusted: bool) -> None:
    forward = make_forward(runtime, source, settings, breakers=runtime.breakers, trusted=trusted)
    runtime.handlers.add(forward.handler)
    runtime.forwards[key] = forward
