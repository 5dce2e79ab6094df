"""The consumers of an inbox other than `main`: their settings, their registration and their subscriptions.

A process registers its consumers when it starts. Every process with a receiver reads the subscriptions of all
processes, so an event gets its receipts even if the consumer's code runs elsewhere.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from oncehook.config.configuration import consumer_retry
from oncehook.config.consumer_settings import ConsumerSettings
from oncehook.handlers.broker_forward import forward_origin
from oncehook.handlers.registry import Handlers
from oncehook.model.errors import ConfigurationError
from oncehook.model.event import MAIN
from oncehook.model.nearest import hint
from oncehook.model.patterns import compile_pattern, overlap
from oncehook.model.retry import Retry, with_fields
from oncehook.model.rows import StoredConsumer
from oncehook.observability import signals
from oncehook.providers.source import Source
from oncehook.providers.subscriptions import Subscription, check_filter
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.runtime import Runtime

STORED = ("sources", "types", "where", "concurrency", "rate", "paused")
"""The settings that other processes and people see. Secrets and addresses stay in the process."""


class Consumers:
    """The named consumers of one process, and the subscriptions of all processes."""

    def __init__(self, store: Store, handlers: Handlers, sources: Mapping[str, Source]) -> None:
        self.store = store
        self.handlers = handlers
        self.sources = sources
        self.settings: dict[str, ConsumerSettings] = {}
        self.in_file: set[str] = set()
        self.stored: list[StoredConsumer] = []  # of all processes, at most a second old
        self._main: dict[str, list[Any]] = {}  # the patterns that some process had a handler of `main` for, by source
        self._registered: object = None  # what this process has registered

    def add(self, name: str, settings: ConsumerSettings, *, in_file: bool) -> None:
        """Set the settings of a consumer. Raises ConfigurationError if it has some already."""
        if name in self.settings:
            raise ConfigurationError(
                f"consumers.{name} is defined twice: in the configuration and in code, or twice in code"
            )
        where = f"consumers.{name}"
        self.settings[name] = settings
        if in_file:
            self.in_file.add(name)
        if settings.where is not None:
            check_filter(name, settings.sources, settings.types, settings.where)
        defaults: dict[str, Any] = {} if settings.timeout is None else {"timeout": settings.timeout}
        retry = consumer_retry(settings, where)
        if retry:
            defaults["retry"] = with_fields(Retry(), retry, f"{where}.retry")
        self.handlers.set_consumer_defaults(name, **defaults)

    @property
    def names(self) -> set[str]:
        """The consumers of the configuration and of the code."""
        return {*self.settings, *self.handlers.consumers}

    def subscribes(self, name: str, source: str) -> bool:
        """Whether the settings of a consumer allow a source."""
        settings = self.settings.get(name)
        return settings is None or settings.sources is None or source in settings.sources

    # -- checks -----------------------------------------------------------------------------------------------------

    def check(self, *, has_worker: bool, removed: Collection[str] = ()) -> None:
        """Raise ConfigurationError for a consumer that can never handle an event.

        A consumer may list a managed source that was `removed`.
        """
        for name, settings in self.settings.items():
            for source in settings.sources or ():
                if source not in removed:
                    self._check_source(name, source)
            own = [handler for handler in self.handlers if handler.consumer == name]
            for handler in own:
                self._check_handler(name, settings, handler.source, handler.pattern, handler.name)
            registered = any(row.name == name and json.loads(row.patterns) for row in self.stored)
            if not own and not registered and has_worker:
                raise ConfigurationError(
                    f"consumers.{name} has no handler and no forward, so its events would wait forever: register one "
                    f'with @inbox.on(…, consumer="{name}"), set consumers.{name}.forward, or remove the consumer'
                )

    def _check_source(self, name: str, source: str) -> None:
        if source not in self.sources:
            known = hint(source, self.sources, "sources")
            raise ConfigurationError(f"consumers.{name}.sources lists {source!r}, which does not exist: {known}")

    def _check_handler(self, name: str, settings: ConsumerSettings, source: str, pattern: str, handler: str) -> None:
        if settings.sources is not None and source not in settings.sources:
            raise ConfigurationError(f"{handler} is for source {source!r}, which is not in consumers.{name}.sources")
        if settings.types is not None and not any(overlap(pattern, allowed) for allowed in settings.types):
            raise ConfigurationError(f"{handler} is for {pattern!r}, which consumers.{name}.types never accepts")

    # -- registration -----------------------------------------------------------------------------------------------

    @property
    def patterns(self) -> dict[tuple[str, str], list[str]]:
        """The patterns that this process handles, by consumer and source.

        Those of `main` are registered only for sources that have other consumers too.
        """
        handlers = list(self.handlers)
        shared = {row.source for row in self.stored} | {h.source for h in handlers if h.consumer != MAIN}
        own: dict[tuple[str, str], list[str]] = {}
        for handler in handlers:
            if handler.consumer != MAIN or handler.source in shared:
                own.setdefault((handler.consumer, handler.source), []).append(handler.pattern)
        for source in shared.intersection(self.handlers.projecting):
            own.setdefault((MAIN, source), []).append("*")
        return own

    def own_subscriptions(self, name: str) -> dict[str, StoredConsumer]:
        """Return the subscriptions of a consumer of this process by source, as it would register them."""
        settings = json.dumps(self._stored(name))
        return {
            source: StoredConsumer(
                name=name,
                source=source,
                patterns=json.dumps(patterns),
                settings=settings,
                revision=0,
                registered_at="",
                seen_at="",
            )
            for (consumer, source), patterns in self.patterns.items()
            if consumer == name
        }

    async def register_at(self, store: Store, name: str) -> None:
        """Register one consumer of this process, for a command that has its own store."""
        own = {key: patterns for key, patterns in self.patterns.items() if key[0] == name}
        await store.consumers.register(own, {name: self._stored(name)})

    async def register(self, *, starting: bool = False) -> bool:
        """Register the consumers of this process, and apply them to the next events. Returns whether any changed.

        They are read again even if nothing changed: another process may have registered them after the last read.
        The settings of the process that started last apply. A process that only renews its registration keeps them, or
        two versions would replace each other's settings during a rolling deploy.
        """
        patterns = self.patterns
        definition = patterns, {name: self._stored(name) for name, _ in patterns}
        overwrite = starting or definition != self._registered
        changed = bool(patterns) and await self.store.consumers.register(*definition, overwrite=overwrite)
        if changed or overwrite:
            await self.load()
        self._registered = definition
        return changed

    def _stored(self, name: str) -> dict[str, Any]:
        settings = self.settings.get(name)
        if settings is None:
            return {}
        unset = {field.name: field.default for field in fields(ConsumerSettings)}
        stored = {key: getattr(settings, key) for key in STORED if getattr(settings, key) != unset[key]}
        if settings.forward is not None:
            stored["forward"] = forward_origin(settings.forward)
        plain: dict[str, Any] = json.loads(json.dumps(stored, default=dict))
        return plain

    async def load(self, after: int = -1) -> None:
        """Read the subscriptions of all processes, and apply them to the next events."""
        await self.load_from(self.store)

    async def load_from(self, store: Store) -> None:
        """Read the subscriptions, for a command that has its own store."""
        stored = await store.consumers.all()
        of_main = await store.consumers.of_main() if stored else []
        self.stored = stored
        self._main = {row.source: [compile_pattern(p) for p in json.loads(row.patterns)] for row in of_main}
        self.apply()

    def apply(self) -> None:
        """Let each source write receipts for the consumers that subscribe to it."""
        for name, source in self.sources.items():
            rows = [row for row in self.stored if row.source == name]
            source.reader.subscribers.subscriptions = tuple(map(_subscription, rows))

    def are_subscribed(self, source: str) -> bool:
        """Whether a consumer other than `main` subscribes to a source."""
        return any(row.source == source for row in self.stored)

    def is_left_to_others(self, source: str, type_: str) -> bool:
        """Whether other consumers subscribe to a source, and no process ever had a handler of `main` for a type.

        If a process had one, it may only be down, and the events of `main` wait for it.
        """
        of_main = self._main.get(source, ())
        return self.are_subscribed(source) and not any(pattern.fullmatch(type_) for pattern in of_main)


class ShardConsumers(Consumers):
    """The consumers of a shard besides `main`. They are registered there too, for their pauses and backfills.

    The receiver writes receipts by the subscriptions in `main`, which has checked them.
    """

    def __init__(self, store: Store, main: Consumers) -> None:
        super().__init__(store, main.handlers, main.sources)
        self.settings, self.in_file = main.settings, main.in_file

    def check(self, *, has_worker: bool, removed: Collection[str] = ()) -> None:
        """Do nothing."""

    def apply(self) -> None:
        """Do nothing."""


def make_consumers(runtime: "Runtime", parent: "Runtime | None") -> Consumers:
    """Make the consumers of an inbox, or of a shard of the inbox `parent`."""
    if parent is not None:
        return ShardConsumers(runtime.store, parent.consumers)
    return Consumers(runtime.store, runtime.handlers, runtime.sources)


def _subscription(row: StoredConsumer) -> Subscription:
    """Make the subscription that a process registered. Without its filter if this version cannot read it.

    Then the consumer gets events that its filter would leave out, which is better than to lose events.
    """
    patterns, settings = json.loads(row.patterns), json.loads(row.settings)
    try:
        types, where = settings.get("types"), settings.get("where")
        return Subscription(row.name, row.source, patterns=patterns, types=types, where=where)
    except (ConfigurationError, TypeError, ValueError) as error:
        signals.emit("consumer_filter_unreadable", consumer=row.name, source=row.source, detail=str(error))
        return Subscription(row.name, row.source, patterns=patterns)
