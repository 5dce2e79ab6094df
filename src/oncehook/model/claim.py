"""What the receiver offers to the store, and what became of it."""

import msgspec

from oncehook.model.event import EventFacts
from oncehook.model.states import State


class Claim(EventFacts, kw_only=True, frozen=True):
    """One event, ready to be taken. Every text in it is already short and free of NULs."""

    status: State = State.RECEIVED
    last_error: str | None = None
    fingerprint: bytes  # SHA-256 of the body without the fields that a provider changes per attempt
    body: bytes
    headers: str  # a JSON object, credentials left out
    inline_seconds: float | None = None  # an inline claim is leased at once, for so long
    serial_key: str | None = None  # events of a source with the same one are handled one at a time, in order
    keys: tuple[str, ...] = ()  # besides the id: no two receipts of a source have one in common


class Claimed(msgspec.Struct):
    """What became of a claim. `fresh` is true for exactly one claim of an id, however many race for it."""

    receipt: int
    fresh: bool
    status: State
    stored_fingerprint: bytes  # of the body in the receipt
    same_body: bool = True  # whether that is the body of this claim


class Duplicate(msgspec.Struct):
    """A delivery of an event that was here before; appended aside, never written on its receipt."""

    receipt: int
    delivery_id: str | None
    fingerprint: bytes
    same_body: bool
