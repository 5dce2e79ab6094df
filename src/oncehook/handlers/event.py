"""What a handler gets: one event, with its facts at hand and its body as plain data when asked.

An `async def` handler gets an `Event`, whose verbs are awaited. A plain handler, which runs in a thread, gets a
`SyncEvent`, whose verbs return their answers.
"""

import hashlib
import re
from collections.abc import Coroutine
from datetime import datetime
from typing import Any, TypedDict, Unpack

import msgspec

from oncehook.concurrency.calling import Function
from oncehook.effects.effect import idempotency_key
from oncehook.handlers.order import Occurred, advance_of
from oncehook.handlers.outbox import Outbox
from oncehook.model.lease import Leased
from oncehook.observability import tracing
from oncehook.providers.expressions import NotReadable, TooDeep, look_up, parse
from oncehook.store.transaction import Transaction, TransactionClosed

_PLAIN = re.compile(r"[A-Za-z0-9_:@/+=~-]{1,191}")
FORM = "application/x-www-form-urlencoded"


class Position(TypedDict, total=False):
    """Where an event stands among the events of an entity, where its own time and id do not say it."""

    at: datetime | Occurred | None
    version: int | None
    terminal: bool
    scope: str | None


class BaseEvent:
    """One event, leased to a handler. `event["data.object.id"]` looks into its payload."""

    __slots__ = ("_headers", "_leased", "_payload", "_transaction")

    def __init__(self, leased: Leased, transaction: Transaction | None = None) -> None:
        self._leased = leased
        self._transaction = transaction
        self._payload: Any = msgspec.UNSET
        self._headers: dict[str, str] | None = None

    @property
    def id(self) -> str:
        """The sender's id, stable across its retries."""
        return self._leased.event_id

    @property
    def receipt(self) -> int:
        """The number of its receipt."""
        return self._leased.receipt

    @property
    def source(self) -> str:
        """The name of its source."""
        return self._leased.source

    @property
    def provider(self) -> str:
        """The name of the provider of its source."""
        return self._leased.provider

    @property
    def type(self) -> str:
        """Its type, as its provider names it."""
        return self._leased.type

    @property
    def object_id(self) -> str | None:
        """The id of the object that it is about, where its provider gives one."""
        return self._leased.object_id

    @property
    def occurred_at(self) -> datetime | None:
        """When it happened, by the sender's clock."""
        return self._leased.occurred_at

    @property
    def received_at(self) -> datetime:
        """When it was committed here, by the database's clock."""
        return self._leased.received_at

    @property
    def attempt(self) -> int:
        """1 for the first attempt."""
        return self._leased.attempt

    @property
    def replays(self) -> int:
        """How often it was replayed."""
        return self._leased.replays

    @property
    def correlation_id(self) -> str:
        """What joins it to other work: from the payload or the trace context, else the receipt's number."""
        return self._leased.correlation_id or str(self._leased.receipt)

    @property
    def raw(self) -> bytes:
        """The exact bytes as received."""
        return self._leased.body or b""

    @property
    def headers(self) -> dict[str, str]:
        """The headers that were kept, with lower-case names; credentials are not among them."""
        if self._headers is None:
            self._headers = msgspec.json.decode(self._leased.headers or "{}", type=dict[str, str])
            self._headers.pop(tracing.CONTEXT_HEADER, None)  # ours, and not of the delivery
        return self._headers

    @property
    def _is_form(self) -> bool:
        """Whether the delivery was a form, by its content type."""
        return self.headers.get("content-type", "").lower().startswith(FORM)

    @property
    def payload(self) -> Any:
        """The body as plain data; None if it cannot be read as such (`raw` has it)."""
        if self._payload is msgspec.UNSET:
            try:
                self._payload = parse(self.raw, form=self._is_form)
            except (NotReadable, TooDeep):
                self._payload = None
        return self._payload

    def __getitem__(self, path: str) -> Any:
        found = look_up(self.payload, path.split("."))
        if found is None:
            raise KeyError(path)
        return found

    def get(self, path: str, default: Any = None) -> Any:
        """What stands at a path of the payload, or `default`."""
        found = look_up(self.payload, path.split("."))
        return default if found is None else found

    def idempotency_key(self, purpose: str = "") -> str:
        """A key for a call that the handler makes itself: the same in every attempt and replay, another per purpose."""
        return idempotency_key("event", self.source, self.id, purpose)

    @property
    def _outbox(self) -> Outbox:
        if not isinstance(self._transaction, Outbox):
            raise TransactionClosed("only an event that an inbox has given to a handler can ask for effects")
        return self._transaction

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.source} {self.type} {self.id} receipt={self.receipt} attempt={self.attempt}>"
        )


class Event(BaseEvent):
    """One event, leased to an `async def` handler. `event["data.object.id"]` looks into its payload."""

    __slots__ = ()

    def effect(
        self, key: str, what: Function | str, /, *, scope: str | None = None, **args: Any
    ) -> Coroutine[Any, Any, bool]:
        """Have `what`, a function under `@inbox.effect`, called with `args` after the commit, once per key.

        It is recorded in this event's transaction. True if it is new, False if the key was recorded before, by any
        event of the scope (this source unless given).
        """
        return self._outbox.effect(self._leased, key, what, args, scope)

    def publish(
        self, topic: str, payload: Any, *, key: str | None = None, scope: str | None = None
    ) -> Coroutine[Any, Any, bool]:
        """Have a message given to the subscriber of a topic after the commit, once per key (the event's id unless
        given). As for `effect`, True if it is new."""
        return self._outbox.publish(self._leased, topic, payload, key, scope)

    def advance(
        self, kind: str, id: str | None, *, state: str | None = None, **position: Unpack[Position]
    ) -> Coroutine[Any, Any, bool]:
        """Whether this event is the newest of an entity, which it then is; False if it is stale: do nothing then.

        Newest is the maximum by (terminal, at, version, event id). Until the transaction ends, whoever advances the
        same entity waits.
        """
        return self._outbox.advance(self._leased, advance_of(self._leased, kind, id, state=state, **position))

    def is_stale(self, kind: str, id: str | None, **position: Unpack[Position]) -> Coroutine[Any, Any, bool]:
        """Whether `advance` would say that this event is stale. A look only: nothing is held, and it may change."""
        return self._outbox.is_stale(advance_of(self._leased, kind, id, **position))

    def canonical(self) -> Coroutine[Any, Any, Any]:
        """The object as its provider has it now, by `inbox.canonical`; fetched once, before the transaction opens."""
        return self._outbox.canonical(self._leased, self)


class SyncEvent(BaseEvent):
    """One event, leased to a plain `def` handler, which runs in a thread: as `Event`, without `await`."""

    __slots__ = ()

    def effect(self, key: str, what: Function | str, /, *, scope: str | None = None, **args: Any) -> bool:
        """As `Event.effect`: True if the effect is new, False if its key was recorded before."""
        return self._outbox.wait_for(self._outbox.effect(self._leased, key, what, args, scope))

    def publish(self, topic: str, payload: Any, *, key: str | None = None, scope: str | None = None) -> bool:
        """As `Event.publish`: True if the message is new, False if its key was recorded before."""
        return self._outbox.wait_for(self._outbox.publish(self._leased, topic, payload, key, scope))

    def advance(self, kind: str, id: str | None, *, state: str | None = None, **position: Unpack[Position]) -> bool:
        """As `Event.advance`: whether this event is the newest of an entity; do nothing if it is not."""
        advance = advance_of(self._leased, kind, id, state=state, **position)
        return self._outbox.wait_for(self._outbox.advance(self._leased, advance))

    def is_stale(self, kind: str, id: str | None, **position: Unpack[Position]) -> bool:
        """As `Event.is_stale`: whether a newer event of the entity was handled."""
        return self._outbox.wait_for(self._outbox.is_stale(advance_of(self._leased, kind, id, **position)))

    def canonical(self) -> Any:
        """As `Event.canonical`: the object as its provider has it now."""
        return self._outbox.wait_for(self._outbox.canonical(self._leased, self))


def make_key(source: str, event_id: str) -> str:
    """`source:id`, at most 255 characters. An id that is long, or has other than plain characters, goes in by its hash.

    A dot is not plain: Standard Webhooks joins id, time and body with dots, and must not be read in two ways.
    """
    if _PLAIN.fullmatch(event_id):
        return f"{source}:{event_id}"
    return f"{source}:sha256-{hashlib.sha256(event_id.encode('utf-8', 'surrogatepass')).hexdigest()}"
