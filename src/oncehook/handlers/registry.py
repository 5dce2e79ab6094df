"""The registry of handlers, which chooses exactly one handler for each event and consumer.

An exact match wins, then the most specific pattern. Two errors are detected at start-up: two equally specific patterns
that can match the same type, and a handler that no event can reach.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from oncehook.concurrency import calling
from oncehook.concurrency.calling import Function, Threads
from oncehook.handlers.event import BaseEvent, Event, SyncEvent
from oncehook.handlers.outbox import Outbox
from oncehook.handlers.payload import NOTATION, DecodedPayloads, PayloadParameters, check_transaction, find_payloads
from oncehook.model.errors import ConfigurationError
from oncehook.model.event import MAIN
from oncehook.model.patterns import Handled, compile_pattern, overlap
from oncehook.model.retry import Fail, Retry
from oncehook.providers.expressions import index_text
from oncehook.store.transaction import Transaction

DEFAULT_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A user's function for the events of a source whose type matches a pattern."""

    source: str
    pattern: str
    function: Function
    consumer: str = MAIN
    retry: Retry
    timeout: float
    batch: int | None = None
    forwards_to: str | None = None  # the origin, if this handler is the `forward` of a source or consumer
    once_per: tuple[str, ...] = ()
    defaulted: frozenset[str] = frozenset()  # those of `retry` and `timeout` that come from the source's settings
    name: str = field(init=False)
    is_async: bool = field(init=False)
    event_class: type[Event] | type[SyncEvent] = field(init=False)
    takes_tx: bool = field(init=False)
    payloads: PayloadParameters | None = field(init=False)

    def __post_init__(self) -> None:
        name = calling.name_of(self.function) if self.forwards_to is None else f"forward to {self.forwards_to}"
        object.__setattr__(self, "name", name)
        calling.check_function(self.function, name, self.retry, self.timeout)
        payloads = find_payloads(self.function, name)
        object.__setattr__(self, "payloads", payloads)
        arguments = calling.count_positional(self.function, name, payloads.names if payloads else ())
        object.__setattr__(self, "is_async", calling.is_declared_async(self.function))
        object.__setattr__(self, "event_class", Event if self.is_async else SyncEvent)
        object.__setattr__(self, "takes_tx", arguments > 1)
        if not 1 <= arguments <= 2:
            raise ConfigurationError(
                f"{self.name} must take (event) or (event, tx), not {arguments} arguments; annotate a parameter for a "
                f"payload as {NOTATION}"
            )
        check_transaction(self.function, self.name, payloads.names if payloads else frozenset())
        if self.batch is not None and (type(self.batch) is not int or self.batch < 1):
            raise ConfigurationError(f"{self.name} has batch={self.batch!r}: batch must be a whole number, 1 or more")
        if self.batch and payloads:
            raise ConfigurationError(
                f"{self.name} has batch={self.batch} and the payload {payloads.parameters[0].name!r}: a batch handler "
                "gets a list of events; read `event.payload` of each"
            )
        if not all(isinstance(name, str) and name for name in self.once_per):
            raise ConfigurationError(
                f"{self.name} has once_per={self.once_per!r}: write names of facts or payload paths"
            )
        if self.once_per and self.batch:
            raise ConfigurationError(
                f"{self.name} has once_per and batch: once_per needs one event per call; remove one of them"
            )

    async def call(
        self,
        event_or_batch: BaseEvent | Sequence[BaseEvent],
        transaction: Transaction,
        threads: Threads,
        payloads: DecodedPayloads | None = None,
    ) -> None:
        """Call the function with its timeout, and close its `tx` afterwards. A plain function runs in `threads`."""
        arguments: Sequence[Any] = (event_or_batch,)
        if self.takes_tx:
            arguments = (event_or_batch, transaction.make_tx(is_async=self.is_async))
        keywords: dict[str, Any] = {}
        if payloads is not None:
            arguments, keywords = payloads.bind(arguments)
        try:
            function = transaction.bind(self.function)
            await calling.call("the handler", function, threads, self.timeout, *arguments, **keywords)
        finally:
            transaction.close_tx()

    def longest(self, threads: Threads) -> float:
        """Return the most seconds that a call may take, including the wait for a free thread."""
        return self.timeout + (0.0 if calling.runs_in_loop(self.function) else threads.patience)

    @property
    def rank(self) -> tuple[bool, int]:
        """How specific the pattern is: without wildcards first, then by the number of literal characters."""
        literals = sum(character not in "*?" for character in self.pattern)
        return literals == len(self.pattern), literals


async def is_repeated(handler: Handler, event: BaseEvent, transaction: Transaction) -> bool:
    """Return whether this handler already handled another event of the same `once_per` identity.

    A replay of the same event does not count as another event.
    """
    if not handler.once_per:
        return False
    values = [_identity(event, name) for name in handler.once_per]
    if None in values:
        missing = handler.once_per[values.index(None)]
        raise Fail(f"{handler.name} has once_per={missing!r}, but the event has no such value")
    if not isinstance(transaction, Outbox):
        raise ConfigurationError("once_per needs an inbox")
    owner = handler.name if handler.consumer == MAIN else f"{handler.consumer}:{handler.name}"
    key = index_text(f"once:{owner}:{json.dumps(values)}") or ""
    return await transaction.is_repeated(event._leased, key)


def _identity(event: BaseEvent, name: str) -> Any:
    """Return a fact of the event, or the value at a path of its payload."""
    if name in ("type", "object_id", "correlation_id"):
        return getattr(event, name)
    return event.get(name)


class Projection(Protocol):
    """Keeps tables that are derived from the events of some sources, such as the email tables.

    It runs after the handler, in the same transaction, right before the processed status is written, so it holds no
    lock while the handler runs. If either fails, both are rolled back.
    """

    def __contains__(self, source: str) -> bool:
        """Return whether the projection uses the events of a source."""

    async def project(self, events: Sequence[BaseEvent], transaction: Transaction) -> None:
        """Update the tables from these events. Projecting the same event again changes nothing."""


class Handlers:
    """The handlers of an inbox."""

    def __init__(self) -> None:
        self._handlers: dict[tuple[str, str], list[Handler]] = {}  # by consumer and source
        self._chosen: dict[tuple[str, str, str], Handler | None] = {}
        self.projection: Projection | None = None
        self.projecting: dict[str, Handler] = {}  # by source: for events that no user handler matches
        self._defaults: dict[str, dict[str, Any]] = {}
        self._consumer_defaults: dict[str, dict[str, Any]] = {}
        self._handled: dict[str, Handled] = {}

    def set_defaults(self, source: str, *, retry: Retry, timeout: float) -> None:
        """Set the defaults of a source's handlers, for handlers that were added before or are added later."""
        self._defaults[source] = {"retry": retry, "timeout": timeout}
        self._apply_defaults()

    def set_consumer_defaults(self, consumer: str, **defaults: Any) -> None:
        """Set `retry` or `timeout` of a consumer's handlers. They override the defaults of the source."""
        self._consumer_defaults[consumer] = defaults
        self._apply_defaults()

    def _apply_defaults(self) -> None:
        for handlers in self._handlers.values():
            handlers[:] = map(self._with_defaults, handlers)
        self._chosen.clear()

    def _with_defaults(self, handler: Handler) -> Handler:
        defaults = self._defaults.get(handler.source, {}) | self._consumer_defaults.get(handler.consumer, {})
        return replace(handler, **{name: defaults[name] for name in handler.defaulted if name in defaults})

    def add(self, handler: Handler) -> None:
        handler = self._with_defaults(handler)
        of_source = self._handlers.setdefault((handler.consumer, handler.source), [])
        for other in of_source:
            if other.forwards_to or handler.forwards_to:
                own = handler if other.forwards_to else other
                forward = f"sources.{handler.source}" if handler.consumer == MAIN else f"consumers.{handler.consumer}"
                raise ConfigurationError(
                    f"{own.name} would never be called: {forward}.forward handles every event of that "
                    f"{'source' if handler.consumer == MAIN else 'consumer'}. Remove the handler or the forward"
                )
            if other.rank == handler.rank and overlap(other.pattern, handler.pattern):
                raise ConfigurationError(
                    f"{handler.name} and {other.name} tie for {handler.source}: {handler.pattern!r} and "
                    f"{other.pattern!r} are equally specific; make one more specific, call both from one handler, or "
                    "register one for another consumer with consumer=…"
                )
        self._handled.clear()
        of_source.append(handler)
        of_source.sort(key=lambda h: h.rank, reverse=True)
        self._chosen.clear()

    def remove_forward(self, source: str) -> None:
        """Remove the forward of a source, if it has one."""
        of_source = self._handlers.get((MAIN, source), [])
        of_source[:] = [handler for handler in of_source if not handler.forwards_to]
        self._handled.clear()
        self._chosen.clear()

    def add_projection(self, source: str, function: Function, *, batch: int) -> None:
        """Register `function` for the events of a source that no user handler matches."""
        defaults = {"retry": Retry(), "timeout": DEFAULT_TIMEOUT, **self._defaults.get(source, {})}
        self.projecting[source] = Handler(source=source, pattern="*", function=function, batch=batch, **defaults)
        self._handled.clear()
        self._chosen.clear()

    @property
    def consumers(self) -> list[str]:
        """The consumers that have handlers in this process. `main` is the first, with or without handlers."""
        named = {consumer for consumer, _ in self._handlers} - {MAIN}
        return [MAIN, *sorted(named)]

    @property
    def handled(self) -> Handled:
        """The sources and type patterns that this process handles for the consumer `main`."""
        return self.handled_by(MAIN)

    def handled_by(self, consumer: str) -> Handled:
        """Return the sources and type patterns that this process handles for a consumer."""
        if consumer not in self._handled:
            own = (handler for handler in self if handler.consumer == consumer)
            patterns = tuple(sorted((handler.source, handler.pattern) for handler in own))
            self._handled[consumer] = Handled(patterns, frozenset(self.projecting if consumer == MAIN else ()))
        return self._handled[consumer]

    @property
    def longest(self) -> float:
        """The longest timeout of all handlers, in seconds."""
        return max((handler.timeout for handler in [*self, *self.projecting.values()]), default=DEFAULT_TIMEOUT)

    def largest_batch(self, consumer: str = MAIN) -> int:
        """Return the most events that one call of a consumer's handler takes, not counting the first."""
        projecting = self.projecting.values() if consumer == MAIN else ()
        own = (handler for handler in self if handler.consumer == consumer)
        return max((handler.batch or 1 for handler in [*own, *projecting]), default=1) - 1

    def find(self, source: str, type_: str, consumer: str = MAIN) -> Handler | None:
        """Return the handler of an event for a consumer, or None if there is none."""
        key = source, type_, consumer
        if key not in self._chosen:
            if len(self._chosen) > 10_000:  # types come from senders
                self._chosen.clear()
            of_source = self._handlers.get((consumer, source), ())
            matching = [h for h in of_source if compile_pattern(h.pattern).fullmatch(type_)]
            exact = [h for h in matching if h.pattern == type_]  # even if the type contains a wildcard
            projecting = self.projecting.get(source) if consumer == MAIN else None
            self._chosen[key] = next(iter(exact or matching), projecting)
        return self._chosen[key]

    async def project(self, events: Sequence[BaseEvent], transaction: Transaction) -> None:
        """Run the projection of these events, after their handler.

        If another event of the same `once_per` identity commits first, the handler's work is rolled back and the
        outbox runs the projection again, so that it is kept.
        """
        projection = self.projection
        if projection is not None and events[0].source in projection and events[0].consumer == MAIN:
            await projection.project(events, transaction)
            if isinstance(transaction, Outbox):
                transaction.project_again = lambda: projection.project(events, transaction)

    def check(self, types_of: Mapping[str, Sequence[str] | None]) -> None:
        """Raise ConfigurationError for a handler that no event can reach. `types_of` maps sources to allow-lists."""
        for handler in self:
            if handler.source not in types_of:
                known = ", ".join(sorted(types_of)) or "none"
                raise ConfigurationError(
                    f"{handler.name} is for source {handler.source!r}, which does not exist: the sources are {known}. "
                    f"Define it in the configuration or in code, or add it with `oncehook sources add {handler.source}`"
                )
            types = types_of[handler.source]
            if types is not None and not any(overlap(handler.pattern, allowed) for allowed in types):
                raise ConfigurationError(
                    f"{handler.name} is for {handler.pattern!r}, which sources.{handler.source}.types never accepts"
                )

    def __iter__(self) -> Iterator[Handler]:
        return iter([handler for handlers in self._handlers.values() for handler in handlers])
