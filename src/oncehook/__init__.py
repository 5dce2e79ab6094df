"""Oncehook: every webhook, exactly once."""

from oncehook.effects.effect import Effect, EffectRefused
from oncehook.handlers.event import Event
from oncehook.handlers.payload import Payload
from oncehook.inbox import Inbox
from oncehook.model.errors import (
    ConfigurationError,
    IntakeFull,
    OncehookError,
    Rejected,
    RowRefused,
    SendFailed,
    SendRefused,
    StoreUnavailable,
    Unavailable,
)
from oncehook.model.receipt import Receipt, State
from oncehook.model.retry import Fail, Retry, RetryLater

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "Effect",
    "EffectRefused",
    "Event",
    "Fail",
    "Inbox",
    "IntakeFull",
    "OncehookError",
    "Payload",
    "Receipt",
    "Rejected",
    "Retry",
    "RetryLater",
    "RowRefused",
    "SendFailed",
    "SendRefused",
    "State",
    "StoreUnavailable",
    "Unavailable",
]
