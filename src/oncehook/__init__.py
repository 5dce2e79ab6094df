"""Oncehook: every webhook, exactly once."""

from oncehook.errors import (
    ConfigurationError,
    IntakeFull,
    OncehookError,
    Rejected,
    RowRefused,
    StoreUnavailable,
    Unavailable,
)
from oncehook.inbox import Inbox
from oncehook.receipt import Receipt, State

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "Inbox",
    "IntakeFull",
    "OncehookError",
    "Receipt",
    "Rejected",
    "RowRefused",
    "State",
    "StoreUnavailable",
    "Unavailable",
]
