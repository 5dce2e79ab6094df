"""A claim: an event that the receiver offers to the store, and the result."""

import msgspec

from oncehook.model.event import EventFacts
from oncehook.model.states import State


class ConsumerClaim(msgspec.Struct, frozen=True, omit_defaults=True):
    """The receipt of one more consumer, which is written together with the claim if the event is new."""

    consumer: str
    status: State = State.RECEIVED
    last_error: str | None = None  # why it is ignored
    serial_key: str | None = None


class Claim(EventFacts, kw_only=True, frozen=True):
    """One event, ready to be stored. Every text in it is already shortened and free of NUL characters."""

    status: State = State.RECEIVED
    last_error: str | None = None
    fingerprint: bytes  # SHA-256 of the body without the fields that the provider changes per delivery
    body: bytes
    headers: str  # a JSON object without credentials
    inline_seconds: float | None = None  # the lease of an inline claim, which is leased at once
    inline_lease: int = 0  # the fencing counter of that lease
    serial_key: str | None = None  # events of a source with the same serial key are handled one at a time, in order
    key_id: str | None = None  # the key that encrypted body and headers; None: they are plain
    keys: tuple[str, ...] = ()  # unique keys besides the id: no two receipts of a source share one
    origin: str | None = None  # the queue that it came from; None: over HTTP
    copies: tuple[ConsumerClaim, ...] = ()  # the receipts of consumers other than `main`
    object: str | None = None  # the address of the payload object that has the body; `body` is then empty


class Claimed(msgspec.Struct):
    """The result of a claim. `fresh` is true for exactly one claim of an id, even if many arrive at the same time."""

    receipt: int
    fresh: bool
    status: State
    stored_fingerprint: bytes  # of the body in the receipt
    same_body: bool = True  # whether the claim has the same body


class Duplicate(msgspec.Struct):
    """A repeated delivery of an event. It has its own row; the receipt is not changed."""

    receipt: int
    delivery_id: str | None
    fingerprint: bytes
    same_body: bool
