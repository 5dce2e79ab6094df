"""What code and configuration have registered with an inbox. All its shards share it."""

from dataclasses import dataclass, field

from oncehook.concurrency.surroundings import CurrentSurrounding
from oncehook.config.settings import Horizon
from oncehook.effects.effect import EffectRegistry
from oncehook.handlers.canonical import CanonicalFetchers
from oncehook.handlers.forward import Forward
from oncehook.handlers.registry import Handlers
from oncehook.providers.source import Source
from oncehook.tenants.cache import TenantCache


@dataclass(frozen=True, slots=True)
class Registered:
    """The sources, handlers and effects of an inbox, with what follows from their settings."""

    sources: dict[str, Source] = field(default_factory=dict)
    tenants: dict[str, TenantCache] = field(default_factory=dict)
    """The tenants of each source that has some."""

    skip_failed: set[str] = field(default_factory=set)
    """The sources with `serial_failed = "skip"`."""

    horizons: dict[str, Horizon] = field(default_factory=dict)
    forwards: dict[str, Forward] = field(default_factory=dict)
    """By source; those of other consumers as `consumer:source`."""

    surroundings: dict[str, CurrentSurrounding] = field(default_factory=dict)
    """By framework: the context manager around each call of a user function."""

    handlers: Handlers = field(default_factory=Handlers)
    effects: EffectRegistry = field(default_factory=EffectRegistry)
    canonicals: CanonicalFetchers = field(default_factory=CanonicalFetchers)
