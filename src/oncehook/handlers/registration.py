"""What code registers with an inbox: handlers, effects, subscribers and how a canonical object is asked for."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, TypeVar, overload

from oncehook.concurrency.calling import name_of
from oncehook.effects.effect import EFFECT_TIMEOUT, FUNCTION, TOPIC, Effect, Effects, Target
from oncehook.handlers.canonical import FETCH_TIMEOUT, Canonical, Fetcher
from oncehook.handlers.event import Event, SyncEvent
from oncehook.handlers.registry import DEFAULT_TIMEOUT, Handler, Handlers
from oncehook.model.errors import ConfigurationError
from oncehook.model.retry import Retry
from oncehook.model.values import Duration, duration

Handling = Callable[Concatenate[Event, ...], Awaitable[object]] | Callable[Concatenate[SyncEvent, ...], None]
BatchHandling = (
    Callable[Concatenate[list[Event], ...], Awaitable[object]] | Callable[Concatenate[list[SyncEvent], ...], None]
)
H = TypeVar("H", bound=Handling)
B = TypeVar("B", bound=BatchHandling)
E = TypeVar("E", bound=Callable[Concatenate[Effect, ...], object])
F = TypeVar("F", bound=Callable[..., object])


class Registration:
    """The decorators of an inbox."""

    def __init__(self, handlers: Handlers, effects: Effects, canonicals: Canonical) -> None:
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
    ) -> Any:
        """Register the handler of a source's events of a type (a pattern with `*` and `?`; also a dotted prefix).

        It is called once per event and replay: `async def h(event)` or `async def h(event, tx)`, or a plain function,
        which runs in a thread with a synchronous `tx`. Parameters annotated with `Annotated[Model, Payload("path")]`
        get that part of the payload, decoded. What it writes through `tx` and the mark that the event is
        processed commit together or not at all. With `batch=N` it gets a list of up to N events and one transaction for
        all of them; if it fails, they are tried one by one. With `once_per`, such as "object_id" or a path in the
        payload, or several, only the first event of that identity is handled; the others are processed without it.
        Without `retry` and `timeout`, those of the source's settings hold.
        """
        identity = identity_of(once_per)
        policy, limit = Retry() if retry is None else retry, seconds(timeout, DEFAULT_TIMEOUT)
        defaulted = frozenset(name for name, given in (("retry", retry), ("timeout", timeout)) if given is None)

        def register(function: F) -> F:
            handler = Handler(
                source=source,
                pattern=type_pattern,
                function=function,
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
        """Register a function for `event.effect`: `def f(effect, …)`, plain or async, by its name unless one is given.

        It is called after the commit with the arguments that the handler gave, at least once per key; pass
        `effect.idempotency_key` on to whoever is called. It may raise `RetryLater` and `Fail`.
        """

        def register(function: E) -> E:
            called = name or getattr(function, "__name__", None)
            if called is None:
                raise ConfigurationError(f"{name_of(function)} has no name of its own: give @inbox.effect a name=…")
            self._perform(FUNCTION, called, function, retry, timeout)
            return function

        return register if function is None else register(function)

    def subscribe(self, topic: str, *, retry: Retry | None = None, timeout: Duration | None = None) -> Callable[[E], E]:
        """Register the function that takes a topic's messages (`event.publish`): `def f(effect, payload)`."""
        if not isinstance(topic, str) or not topic:
            raise ConfigurationError('@inbox.subscribe takes a topic: write @inbox.subscribe("…") over the function')

        def register(function: E) -> E:
            self._perform(TOPIC, topic, function, retry, timeout)
            return function

        return register

    def _perform(self, kind: str, name: str, function: Any, retry: Retry | None, timeout: Duration | None) -> None:
        policy = Retry() if retry is None else retry
        self._effects.add(Target(kind, name, function, policy, seconds(timeout, EFFECT_TIMEOUT)))

    @overload
    def canonical(self, source: str, fetch: F, *, timeout: Duration | None = None) -> F: ...

    @overload
    def canonical(self, source: str, *, timeout: Duration | None = None) -> Callable[[F], F]: ...

    def canonical(self, source: str, fetch: Any = None, *, timeout: Duration | None = None) -> Any:
        """Register how a source's object is asked of its provider, for `event.canonical()`: `fetch(event)`."""

        def register(fetch: F) -> F:
            self._canonicals.add(source, Fetcher(fetch, seconds(timeout, FETCH_TIMEOUT)))
            return fetch

        return register if fetch is None else register(fetch)


def identity_of(once_per: Any) -> tuple[str, ...]:
    """What `once_per` names: texts, at least one unless it is left out."""
    names = (once_per,) if isinstance(once_per, str) else once_per
    if names is None:
        return ()
    if not isinstance(names, (tuple, list)) or not names:
        raise ConfigurationError(
            f'once_per={once_per!r} names nothing: leave it out, or name facts of the event, such as "object_id"'
        )
    return tuple(names)


def seconds(timeout: Duration | None, default: float) -> float:
    """A timeout as it is given in code."""
    try:
        return default if timeout is None else duration(timeout)
    except ValueError as error:
        raise ConfigurationError(f"timeout={timeout!r}: {error}") from None
