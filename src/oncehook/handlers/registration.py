"""The decorators of an inbox: they register handlers, effects, subscribers and canonical fetchers."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, TypeVar, overload

from oncehook.concurrency.calling import name_of
from oncehook.config.configuration import check_consumer_name
from oncehook.effects.effect import EFFECT_TIMEOUT, FUNCTION, TOPIC, Effect, EffectRegistry, RegisteredEffect
from oncehook.handlers.canonical import FETCH_TIMEOUT, CanonicalFetchers, Fetcher
from oncehook.handlers.event import Event, SyncEvent
from oncehook.handlers.registry import DEFAULT_TIMEOUT, Handler, Handlers
from oncehook.model.errors import ConfigurationError
from oncehook.model.event import MAIN
from oncehook.model.retry import Retry
from oncehook.model.values import Duration, duration

if TYPE_CHECKING:
    from oncehook.effects.tasks import TaskQueue

HandlerFunction = Callable[Concatenate[Event, ...], Awaitable[object]] | Callable[Concatenate[SyncEvent, ...], None]
BatchFunction = (
    Callable[Concatenate[list[Event], ...], Awaitable[object]] | Callable[Concatenate[list[SyncEvent], ...], None]
)
H = TypeVar("H", bound=HandlerFunction)
B = TypeVar("B", bound=BatchFunction)
E = TypeVar("E", bound=Callable[Concatenate[Effect, ...], object])
F = TypeVar("F", bound=Callable[..., object])


class Registration:
    """The decorators that `Inbox` inherits."""

    def __init__(self, handlers: Handlers, effects: EffectRegistry, canonicals: CanonicalFetchers) -> None:
        self._handlers = handlers
        self._effects = effects
        self._canonicals = canonicals

    # -- handlers -------------------------------------------------------------------------------------------------

    @overload
    def on(
        self,
        source: str,
        type_pattern: str,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        batch: None = None,
        once_per: str | Sequence[str] | None = None,
        consumer: str = MAIN,
    ) -> Callable[[H], H]: ...

    @overload
    def on(
        self,
        source: str,
        type_pattern: str,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        batch: int,
        consumer: str = MAIN,
    ) -> Callable[[B], B]: ...

    def on(
        self,
        source: str,
        type_pattern: str,
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        batch: int | None = None,
        once_per: str | Sequence[str] | None = None,
        consumer: str = MAIN,
    ) -> Any:
        """Register the handler of a source's events whose type matches a pattern.

        In a pattern, `*` matches any text and `?` one character. A pattern also matches as a dotted prefix: `invoice`
        matches `invoice.paid`. Exactly one handler runs per event: the one with the most specific pattern.

            @inbox.on("stripe", "invoice.paid")
            async def invoice_paid(event: Event, tx: AsyncTransaction) -> None:
                await tx.execute("UPDATE invoices SET paid = true WHERE id = $1", event.object_id)

        The function takes `(event)` or `(event, tx)`. A plain `def` runs in a thread and gets a synchronous `tx`. A
        parameter annotated with `Annotated[Model, Payload("path")]` gets that part of the payload, decoded. All writes
        through `tx` commit together with the processed status, or not at all.

        `retry` and `timeout` override the source's settings. With `batch=N` the handler gets a list of up to N events
        and one transaction for all of them; if it fails, each event is retried by itself. With `once_per`, the handler
        runs only for the first event of an identity, and later events are settled as processed without it. The
        identity is one or more names: `type`, `object_id`, `correlation_id` or paths of the payload.

        With `consumer="ledger"`, the handler belongs to another consumer. Each consumer of an event has its own
        handler, transaction, attempts and outcome: exactly one handler runs per event and consumer.
        """
        check_consumer_name(consumer, f"@inbox.on({source!r}, {type_pattern!r}, consumer=…)")
        identity = identity_of(once_per)
        policy, limit = Retry() if retry is None else retry, seconds(timeout, DEFAULT_TIMEOUT)
        defaulted = frozenset(name for name, value in (("retry", retry), ("timeout", timeout)) if value is None)

        def register(function: F) -> F:
            handler = Handler(
                source=source,
                pattern=type_pattern,
                function=function,
                consumer=consumer,
                retry=policy,
                timeout=limit,
                batch=batch,
                once_per=identity,
                defaulted=defaulted,
            )
            self._handlers.add(handler)
            return function

        return register

    # -- effects --------------------------------------------------------------------------------------------------

    @overload
    def effect(self, function: E) -> E: ...

    @overload
    def effect(
        self, *, name: str | None = None, retry: Retry | None = None, timeout: Duration | None = None
    ) -> Callable[[E], E]: ...

    def effect(
        self,
        function: Any = None,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Register a function that handlers can request with `event.effect`.

        The relay calls it after the handler's commit, with an `Effect` and the arguments of the request. It is called
        at least once per key, so pass `effect.idempotency_key` to the API that it calls. It may raise `RetryLater` and
        `Fail`. It may be `async def` or a plain `def`, and is known by its own name unless `name` is set.

            @inbox.effect
            async def send_receipt(effect: Effect, invoice: str) -> None:
                await mailer.send(invoice, idempotency_key=effect.idempotency_key)
        """

        def register(function: E) -> E:
            effect_name = name or getattr(function, "__name__", None)
            if effect_name is None:
                raise ConfigurationError(f"{name_of(function)} has no __name__: pass name=… to @inbox.effect")
            self._add_effect(FUNCTION, effect_name, function, retry, timeout)
            return function

        return register if function is None else register(function)

    def subscribe(self, topic: str, *, retry: Retry | None = None, timeout: Duration | None = None) -> Callable[[E], E]:
        """Register the function that receives a topic's messages, which handlers send with `event.publish`.

        The relay calls it after the publishing handler's commit. A topic has one subscriber.

            @inbox.subscribe("invoices")
            async def index_invoice(effect: Effect, payload: dict[str, Any]) -> None: ...
        """
        if not isinstance(topic, str) or not topic:
            raise ConfigurationError(
                '@inbox.subscribe needs a topic: write @inbox.subscribe("topic") above the function'
            )

        def register(function: E) -> E:
            self._add_effect(TOPIC, topic, function, retry, timeout)
            return function

        return register

    def tasks(
        self,
        queue: object,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        **options: Any,
    ) -> "TaskQueue":
        """Register a task queue, so that handlers can add tasks to it with `event.enqueue`.

        `queue` is a Celery app, a Dramatiq broker, an RQ `Queue`, arq's `RedisSettings`, a Taskiq broker or Temporal's
        `ConnectConfig`. The relay hands tasks over after the commit. `retry` and `timeout` are those of the hand-over.
        A second queue of the same library needs a `name`. `options` are those of the library's adapter.

            inbox.tasks(celery_app)
        """
        from oncehook.effects.tasks import TASK_TIMEOUT, add_task_queue  # only an inbox with task queues needs it

        limit = seconds(timeout, TASK_TIMEOUT)
        return add_task_queue(self._effects, queue, name=name, retry=retry, seconds=limit, options=options)

    def _add_effect(self, kind: str, name: str, function: Any, retry: Retry | None, timeout: Duration | None) -> None:
        policy = Retry() if retry is None else retry
        self._effects.add(RegisteredEffect(kind, name, function, policy, seconds(timeout, EFFECT_TIMEOUT)))

    @overload
    def canonical(self, source: str, fetch: F, *, timeout: Duration | None = None) -> F: ...

    @overload
    def canonical(self, source: str, *, timeout: Duration | None = None) -> Callable[[F], F]: ...

    def canonical(self, source: str, fetch: Any = None, *, timeout: Duration | None = None) -> Any:
        """Register the function that `event.canonical()` calls to fetch an object from the source's provider.

        `fetch(event)` returns the object, or None if it no longer exists. It may be `async def` or a plain `def`. If
        it raises or exceeds `timeout` (10 s by default), the event is retried later.

            @inbox.canonical("stripe")
            async def fetch_invoice(event: Event) -> dict[str, Any] | None: ...
        """

        def register(fetch: F) -> F:
            self._canonicals.add(source, Fetcher(fetch, seconds(timeout, FETCH_TIMEOUT)))
            return fetch

        return register if fetch is None else register(fetch)


def identity_of(once_per: Any) -> tuple[str, ...]:
    """Return the names in `once_per` as a tuple, which is empty if it is None."""
    names = (once_per,) if isinstance(once_per, str) else once_per
    if names is None:
        return ()
    if not isinstance(names, (tuple, list)) or not names:
        raise ConfigurationError(
            f'once_per={once_per!r} names no fact of the event: remove it, or write a name such as "object_id"'
        )
    return tuple(names)


def seconds(timeout: Duration | None, default: float) -> float:
    """Parse a timeout that code passes. Returns seconds, or `default` if it is None."""
    try:
        return default if timeout is None else duration(timeout)
    except ValueError as error:
        raise ConfigurationError(f"timeout={timeout!r}: {error}") from None
