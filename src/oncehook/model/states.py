"""The states of a receipt, and every legal move between them."""

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """Where a receipt stands. The comment says who moves it on; nobody but `prune` deletes a row."""

    RECEIVED = "received"  # committed by the door; a worker leases it
    PROCESSING = "processing"  # leased; the worker settles it, or its lease runs out
    PROCESSED = "processed"  # the handler's work is committed; only a replay moves it
    RETRYING = "retrying"  # waits for its next attempt; a worker leases it
    FAILED = "failed"  # a dead letter; only a replay moves it
    IGNORED = "ignored"  # not in the source's allow-list, or without a handler anywhere; only a replay moves it


TRANSITIONS: Mapping[State | None, frozenset[State]] = {
    None: frozenset({State.RECEIVED, State.PROCESSING, State.IGNORED, State.FAILED}),  # what the door may insert
    State.RECEIVED: frozenset({State.PROCESSING, State.IGNORED}),
    State.PROCESSING: frozenset({State.PROCESSED, State.RETRYING, State.FAILED, State.RECEIVED}),
    State.RETRYING: frozenset({State.PROCESSING, State.FAILED, State.IGNORED}),
    State.PROCESSED: frozenset({State.RECEIVED}),
    State.FAILED: frozenset({State.RECEIVED}),
    State.IGNORED: frozenset({State.RECEIVED}),
}
"""Every legal move. `None` is the world before the row; a move that is not here must not happen."""


UNHANDLED = "unhandled"
"""In a filter, in place of a state: events that wait and that no process has a handler for."""
