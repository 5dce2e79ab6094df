"""The states of a receipt, and every allowed transition between them."""

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """The status of a receipt. Only `prune` deletes a receipt."""

    RECEIVED = "received"  # committed by the receiver; a worker leases it
    PROCESSING = "processing"  # leased; the worker settles it, or its lease expires
    PROCESSED = "processed"  # the handler's work is committed; only a replay changes it
    RETRYING = "retrying"  # waits for its next attempt; a worker leases it
    FAILED = "failed"  # a dead letter; only a replay changes it, or the removal of its consumer
    IGNORED = "ignored"  # left out by `types` or `where`, no process handles it, or its consumer was removed


TRANSITIONS: Mapping[State | None, frozenset[State]] = {
    None: frozenset(
        {State.RECEIVED, State.PROCESSING, State.IGNORED, State.FAILED}
    ),  # the states that the receiver may insert
    State.RECEIVED: frozenset({State.PROCESSING, State.IGNORED, State.FAILED}),
    State.PROCESSING: frozenset({State.PROCESSED, State.RETRYING, State.FAILED, State.RECEIVED, State.IGNORED}),
    State.RETRYING: frozenset({State.PROCESSING, State.FAILED, State.IGNORED}),
    State.PROCESSED: frozenset({State.RECEIVED}),
    State.FAILED: frozenset({State.RECEIVED, State.IGNORED}),
    State.IGNORED: frozenset({State.RECEIVED}),
}
"""Every allowed transition. `None` stands for a receipt that does not exist yet."""


UNHANDLED = "unhandled"
"""A value that filters accept as a status: waiting events that no process handles."""
