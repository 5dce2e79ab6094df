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
from oncehook.operations.prune import Pruned
from oncehook.operations.rehearse import Rehearsal
from oncehook.operations.replay import Replayed
from oncehook.operations.selection import EventAmbiguous, EventFilter, EventNotFound
from oncehook.store.transaction import TransactionClosed

__version__ = "0.1.0"

__all__ = [
    "AsyncTransaction",
    "ConfigurationError",
    "Effect",
    "EffectRefused",
    "Event",
    "EventAmbiguous",
    "EventFilter",
    "EventNotFound",
    "Fail",
    "Inbox",
    "InboxOptions",
    "IntakeFull",
    "OncehookError",
    "Payload",
    "Pruned",
    "Receipt",
    "Rehearsal",
    "Rejected",
    "Replayed",
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
    "TransactionClosed",
    "Unavailable",
]
