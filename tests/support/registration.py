"""Registers handlers and effects without an inbox, so that a test needs no database."""

import functools
from collections.abc import Callable
from typing import Any

from oncehook.effects.effect import EffectRegistry
from oncehook.handlers.canonical import CanonicalFetchers
from oncehook.handlers.registration import Registration
from oncehook.handlers.registry import Handlers


def make_registration() -> Registration:
    """The decorators of an inbox: `on`, `effect`, `subscribe` and `canonical`."""
    return Registration(Handlers(), EffectRegistry(), CanonicalFetchers())


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind a decorator, as users write them."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper
