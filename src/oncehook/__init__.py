"""Oncehook: every webhook, exactly once."""

from oncehook.effect import Effect, EffectRefused
from oncehook.errors import (
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
from oncehook.event import Event
from oncehook.inbox import Inbox
from oncehook.receipt import Receipt, State
from oncehook.retry import Fail, Retry, RetryLater

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
