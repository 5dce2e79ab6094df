"""Registers handlers and effects without an inbox, so that a test needs no database."""

from oncehook.effects.effect import EffectRegistry
from oncehook.handlers.canonical import CanonicalFetchers
from oncehook.handlers.registration import Registration
from oncehook.handlers.registry import Handlers


def make_registration() -> Registration:
    """The decorators of an inbox: `on`, `effect`, `subscribe` and `canonical`."""
    return Registration(Handlers(), EffectRegistry(), CanonicalFetchers())
