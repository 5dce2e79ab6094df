"""Oncehook: every webhook, exactly once."""

from oncehook.config.options import InboxOptions, SourceOptions
from oncehook.effects.effect import Effect, EffectRefused
from oncehook.handlers.event import Event, SyncEvent
from oncehook.handlers.payload import Payload
from oncehook.handlers.transaction import AsyncTransaction, Row, SyncTransaction
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
from oncehook.model.receipt import Receipt
from oncehook.model.retry import Fail, Retry, RetryLater
from oncehook.model.states import State

__version__ = "0.1.0"

__all__ = [
    "AsyncTransaction",
    "ConfigurationError",
    "Effect",
    "EffectRefused",
    "Event",
    "Fail",
    "Inbox",
    "InboxOptions",
    "IntakeFull",
    "OncehookError",
    "Payload",
    "Receipt",
    "Rejected",
    "Retry",
    "RetryLater",
    "Row",
    "RowRefused",
    "SendFailed",
    "SendRefused",
    "SourceOptions",
    "State",
    "StoreUnavailable",
    "SyncEvent",
    "SyncTransaction",
    "Unavailable",
]
