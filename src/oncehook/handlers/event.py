"""The event that a handler gets: its facts as properties, and its body as plain data on first use.

An `async def` handler gets an `Event`, whose methods are awaited. A plain `def` handler runs in a thread and gets a
`SyncEvent`, whose methods block and return their results.
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
MAX_SCOPE = 63
FORM = "application/x-www-form-urlencoded"


class OrderOptions(TypedDict, total=False):
    """Options that order an event among the events of an entity, if its own time and id are not enough."""

    at: datetime | Occurred | None
    version: int | None
    terminal: bool
    scope: str | None


class BaseEvent:
    """The facts and the payload of one event: what `Event` and `SyncEvent` share."""

    __slots__ = ("_headers", "_leased", "_payload", "_transaction")

    def __init__(self, leased: Leased, transaction: Transaction | None = None) -> None:
        self._leased = leased
        self._transaction = transaction
        self._payload: Any = msgspec.UNSET
        self._headers: dict[str, str] | None = None

    @property
    def id(self) -> str:
        """The sender's id of the event. It stays the same when the sender retries."""
        return self._leased.event_id

    @property
    def receipt(self) -> int:
        """The number of the event's receipt."""
        return self._leased.receipt

    @property
    def source(self) -> str:
        """The name of the source that received it."""
        return self._leased.source

    @property
    def tenant(self) -> str | None:
        """The tenant of the source that it belongs to, or None if it has none."""
        return self._leased.tenant or None

    @property
    def consumer(self) -> str:
        """The consumer that handles it: `main`, unless the handler was registered with a name."""
        return self._leased.consumer

    @property
    def provider(self) -> str:
        """The name of the source's provider, such as `stripe`."""
        return self._leased.provider

    @property
    def type(self) -> str:
        """The provider's name for the kind of event, such as `invoice.paid`."""
        return self._leased.type

    @property
    def object_id(self) -> str | None:
        """The id of the object that the event is about, or None if the provider sends none."""
        return self._leased.object_id

    @property
    def occurred_at(self) -> datetime | None:
        """When the event happened, by the sender's clock, or None if the provider does not say."""
        return self._leased.occurred_at

    @property
    def received_at(self) -> datetime:
        """When the event was committed to the inbox, by the database's clock."""
        return self._leased.received_at

    @property
    def attempt(self) -> int:
        """The number of this attempt, starting at 1."""
        return self._leased.attempt

    @property
    def replays(self) -> int:
        """How many times the event was replayed."""
        return self._leased.replays

    @property
    def correlation_id(self) -> str:
        """An id that links the event to other work, for logs and traces.

        It comes from the payload (the source's `correlation`) or the trace context, else it is the receipt number.
        """
        return self._leased.correlation_id or str(self._leased.receipt)

    @property
    def raw(self) -> bytes:
        """The exact bytes of the body, as received."""
        return self._leased.body or b""

    @property
    def headers(self) -> dict[str, str]:
        """The stored headers of the delivery, with lower-case names. Credentials are never stored."""
        if self._headers is None:
            self._headers = msgspec.json.decode(self._leased.headers or "{}", type=dict[str, str])
            self._headers.pop(tracing.CONTEXT_HEADER, None)  # set by Oncehook, not by the sender
        return self._headers

    @property
    def _is_form(self) -> bool:
        """Whether the content type of the delivery is a form."""
        return self.headers.get("content-type", "").lower().startswith(FORM)

    @property
    def payload(self) -> Any:
        """The body decoded from JSON or a form, or None if it is neither. `raw` always has the bytes."""
        if self._payload is msgspec.UNSET:
            try:
                self._payload = parse(self.raw, form=self._is_form)
            except (NotReadable, TooDeep):
                self._payload = None
        return self._payload

    def __getitem__(self, path: str) -> Any:
        value = look_up(self.payload, path.split("."))
        if value is None:
            raise KeyError(path)
        return value

    def get(self, path: str, default: Any = None) -> Any:
        """Return the value at a dotted path of the payload.

        Returns `default` if the value is missing or null.

            amount = event.get("data.object.amount_paid", 0)
        """
        value = look_up(self.payload, path.split("."))
        return default if value is None else value

    def idempotency_key(self, purpose: str = "") -> str:
        """Return an idempotency key for a network call that the handler makes itself.

        The key is the same in every attempt and replay of the event. Each `purpose` has its own key, and so has each
        consumer: two consumers that make the same call with the same purpose make two calls.
        """
        return idempotency_key("event", self._leased.consumer_scope, self.id, purpose)

    @property
    def _outbox(self) -> Outbox:
        if not isinstance(self._transaction, Outbox):
            raise TransactionClosed("this event was not passed to a handler by an inbox: it cannot request effects")
        return self._transaction

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.source} {self.type} {self.id} receipt={self.receipt} attempt={self.attempt}>"
        )


class Event(BaseEvent):
    """The event that an `async def` handler gets.

    `event["data.object.id"]` reads a value of its payload, and raises KeyError if it is missing or null.

        @inbox.on("stripe", "invoice.paid")
        async def invoice_paid(event: Event, tx: AsyncTransaction) -> None:
            if await event.advance("invoice", event.object_id, state="paid"):
                await tx.execute("UPDATE invoices SET paid = true WHERE id = $1", event.object_id)
                await event.effect(f"receipt:{event.object_id}", send_receipt, invoice=event.object_id)
    """

    __slots__ = ()

    def effect(
        self, key: str, target: Function | str, /, *, scope: str | None = None, **args: Any
    ) -> Coroutine[Any, Any, bool]:
        """Request an effect: after the handler's transaction commits, the relay calls `target` with `args`.

        Each key has one effect. `target` is a function registered with `@inbox.effect`, its name, or an http(s)
        address. The request is recorded in the handler's transaction. Returns True if the key is new, and False if an
        event of the same scope already recorded it. The scope is the event's source unless `scope` names another.

            await event.effect(f"receipt:{event.object_id}", send_receipt, invoice=event.object_id)
        """
        return self._outbox.effect(self._leased, key, target, args, scope)

    def publish(
        self, topic: str, payload: Any, *, key: str | None = None, scope: str | None = None
    ) -> Coroutine[Any, Any, bool]:
        """Publish a message: the relay passes it to the topic's subscriber after the commit, once per key.

        The key is the topic and the event's id unless `key` is set. Returns True if the key is new, as `effect` does.
        """
        return self._outbox.publish(self._leased, topic, payload, key, scope)

    def enqueue(
        self, task: object, /, *args: Any, key: str | None = None, scope: str | None = None, **kwargs: Any
    ) -> Coroutine[Any, Any, bool]:
        """Enqueue a task: the relay hands it to its task queue after the commit, once per key.

        `task` is a task of a queue that `inbox.tasks` registered, or its name. The id of the task is the idempotency
        key of the request, the same at every attempt. The key is the task's name and the event's id unless `key` is
        set. Returns True if the key is new, as `effect` does.

            await event.enqueue(send_receipt, invoice=event.object_id)
        """
        return self._outbox.enqueue(self._leased, (task, args, kwargs), key, scope)

    def advance(
        self, kind: str, id: str | None, *, state: str | None = None, **order: Unpack[OrderOptions]
    ) -> Coroutine[Any, Any, bool]:
        """Record this event as the newest of an entity, unless a newer event was already recorded.

        Returns False if the event is stale: the handler should then do nothing. Events are compared by (terminal, at,
        version, event id), and `at` is the event's own time unless it is set. The entity stays locked until the
        transaction ends, so two handlers never advance it at the same time.

            if not await event.advance("invoice", event.object_id, state="paid"):
                return
        """
        return self._outbox.advance(self._leased, advance_of(self._leased, kind, id, state=state, **order))

    def is_stale(self, kind: str, id: str | None, **order: Unpack[OrderOptions]) -> Coroutine[Any, Any, bool]:
        """Return whether `advance` would find this event stale. It takes no lock, so the result may change."""
        return self._outbox.is_stale(advance_of(self._leased, kind, id, **order))

    def canonical(self) -> Coroutine[Any, Any, Any]:
        """Fetch the object's current state from the provider, with the function registered by `inbox.canonical`.

        It is fetched once per attempt. Call it before the first use of `tx`, `effect` or `advance`, so that no
        transaction is open during the request.
        """
        return self._outbox.canonical(self._leased, self)


class SyncEvent(BaseEvent):
    """The event that a plain `def` handler gets: like `Event`, with methods that block instead of being awaited.

    The handler runs in a thread, so these methods never block the event loop.
    """

    __slots__ = ()

    def effect(self, key: str, target: Function | str, /, *, scope: str | None = None, **args: Any) -> bool:
        """Request an effect, as `Event.effect` does. Returns True if its key is new."""
        return self._outbox.wait_for(self._outbox.effect(self._leased, key, target, args, scope))

    def publish(self, topic: str, payload: Any, *, key: str | None = None, scope: str | None = None) -> bool:
        """Publish a message, as `Event.publish` does. Returns True if its key is new."""
        return self._outbox.wait_for(self._outbox.publish(self._leased, topic, payload, key, scope))

    def enqueue(
        self, task: object, /, *args: Any, key: str | None = None, scope: str | None = None, **kwargs: Any
    ) -> bool:
        """Enqueue a task, as `Event.enqueue` does. Returns True if its key is new."""
        return self._outbox.wait_for(self._outbox.enqueue(self._leased, (task, args, kwargs), key, scope))

    def advance(self, kind: str, id: str | None, *, state: str | None = None, **order: Unpack[OrderOptions]) -> bool:
        """Record this event as the newest of an entity, as `Event.advance` does. Returns False if it is stale."""
        advance = advance_of(self._leased, kind, id, state=state, **order)
        return self._outbox.wait_for(self._outbox.advance(self._leased, advance))

    def is_stale(self, kind: str, id: str | None, **order: Unpack[OrderOptions]) -> bool:
        """Return whether a newer event of the entity was recorded, as `Event.is_stale` does."""
        return self._outbox.wait_for(self._outbox.is_stale(advance_of(self._leased, kind, id, **order)))

    def canonical(self) -> Any:
        """Fetch the object's current state from the provider, as `Event.canonical` does."""
        return self._outbox.wait_for(self._outbox.canonical(self._leased, self))


def make_key(scope: str, event_id: str) -> str:
    """Return `scope:id` in at most 255 characters. A long id, or one with special characters, is replaced by its hash.

    A dot counts as special. Standard Webhooks signs id, time and body joined by dots, so a dot in the id would make the
    signed text ambiguous.
    """
    if len(scope) > MAX_SCOPE or not _PLAIN.fullmatch(scope):  # a tenant may have dots
        scope, event_id = re.split("[/@]", scope, maxsplit=1)[0], f"{scope}:{event_id}."
    if _PLAIN.fullmatch(event_id):
        return f"{scope}:{event_id}"
    return f"{scope}:sha256-{hashlib.sha256(event_id.encode('utf-8', 'surrogatepass')).hexdigest()}"
