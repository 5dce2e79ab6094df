"""Registers the effects whose target is an address: of an HTTP server, or of a broker."""

from typing import TYPE_CHECKING

from oncehook.effects.broker import EffectPublisher
from oncehook.effects.effect import BROKER, BROKER_TOPIC, EFFECT_TIMEOUT, HTTP, RegisteredEffect
from oncehook.effects.http import EffectPoster
from oncehook.handlers.forward import POLICY

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


def register_address_effects(runtime: "Runtime") -> None:
    """Let this process run effects at addresses. Only the configuration file names those that are not public."""
    allowed = runtime.configuration.settings.effect_targets
    poster = EffectPoster(runtime.http_client, allowed, runtime.breakers, runtime.clock)
    publisher = EffectPublisher(runtime.publishers, runtime.broker_targets, runtime.breakers, runtime.clock)
    for kind, function in ((HTTP, poster.post), (BROKER, publisher.send), (BROKER_TOPIC, publisher.publish)):
        runtime.effects.add(RegisteredEffect(kind, None, function, POLICY, EFFECT_TIMEOUT))
