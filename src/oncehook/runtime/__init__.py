"""Runtime: builds the parts behind an `Inbox`, and starts and stops them.

This is internal. Only the command line, the web pages, `oncehook.testing` and Oncehook's own tests use
`inbox._runtime`.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from oncehook.brokers.pool import Publishers
from oncehook.concurrency.clock import Clock
from oncehook.concurrency.stopping import Deadline
from oncehook.config.configuration import Configuration
from oncehook.config.consumer_settings import ConsumerSettings
from oncehook.config.settings import Settings, SourceSettings
from oncehook.effects.broker import BrokerTargets
from oncehook.effects.relay import Relay
from oncehook.handlers.outbox import Outbox
from oncehook.handlers.registry import DEFAULT_TIMEOUT
from oncehook.handlers.roster import Roster
from oncehook.http_client.circuit_breaker import CircuitBreaker
from oncehook.http_client.client import HttpClient
from oncehook.model.errors import ConfigurationError
from oncehook.model.receipt import Receipt
from oncehook.model.retry import Retry, with_fields
from oncehook.observability import signals
from oncehook.operations.metrics_exporter import MetricsExporter
from oncehook.operations.prune import horizon
from oncehook.operations.rehearse import Rehearsal
from oncehook.providers.certificates import Certificates
from oncehook.providers.forwarded_address import Proxies
from oncehook.providers.source import Source
from oncehook.receiver.inline import InlineReceiver
from oncehook.receiver.reception import Reception
from oncehook.runtime.address_effects import register_address_effects
from oncehook.runtime.background import BackgroundTasks
from oncehook.runtime.checks import (
    check_configuration,
    check_encryption,
    check_schema,
    check_sources,
    log_warnings,
    open_store,
)
from oncehook.runtime.companion import Companion, stop_all
from oncehook.runtime.consumers import make_consumers
from oncehook.runtime.email_projection import project_email
from oncehook.runtime.forwards import forward_source, forward_to_consumer, forward_to_consumers
from oncehook.runtime.lifecycle import Lifecycle
from oncehook.runtime.managed_sources import ManagedSources
from oncehook.runtime.managed_tenants import make_managed_sources, make_tenant_cache
from oncehook.runtime.parts import Part, make_parts, make_shards, start_parts, stop_parts
from oncehook.runtime.readiness import Readiness
from oncehook.runtime.registered import Registered
from oncehook.runtime.rehearsals import make_rehearse
from oncehook.runtime.sessions import make_sessions
from oncehook.runtime.settings_watch import SettingsWatch
from oncehook.runtime.source_factory import make_source
from oncehook.runtime.workers import all_slots, make_processor, make_workers
from oncehook.store import make_store
from oncehook.store.store import Store
from oncehook.tenants.lookup import SecretsFor
from oncehook.worker.heartbeat import Heartbeat
from oncehook.worker.process import Processor
from oncehook.worker.wakeups import Announcer
from oncehook.worker.worker import Worker

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from oncehook.alerts import AlertMonitor
    from oncehook.email import Email
    from oncehook.email.projection import EmailProjection
    from oncehook.runtime.read_replica import ReadReplica
    from oncehook.runtime.work_queue import WorkQueue

STOP_MARGIN = 3.0
"""Seconds after `stop_grace` in which everything except handlers and effects must stop."""


class Runtime:
    """The store, the receiver, the worker, the relay and the background tasks of one inbox."""

    replica: "ReadReplica | None" = None  # if one is configured, while the inbox runs

    shard: tuple[str, int] | None = None  # name and number, of a shard besides `main`

    def __init__(
        self,
        configuration: Configuration,
        settings: Settings,
        *,
        worker: bool,
        clock: Clock,
        certificates: Certificates,
        engine: "Engine | AsyncEngine | None",
        parent: "Runtime | None" = None,
    ) -> None:
        self.configuration = configuration
        self.settings = settings
        self.clock, self.certificates = clock, certificates
        self.has_worker = worker
        self.is_mounted = True  # in another app; False if an oncehook command runs the process
        self.registered: Registered = Registered() if parent is None else parent.registered  # all shards share it
        own = self.registered
        self.sources, self.tenants = own.sources, own.tenants
        self.skip_failed, self.horizons, self.forwards = own.skip_failed, own.horizons, own.forwards
        self.handlers, self.effects, self.canonicals = own.handlers, own.effects, own.canonicals
        self.store: Store = make_store(settings)
        self.store.process.longest_handler = lambda: self.handlers.longest
        self.store.process.has_tenants = lambda: any(source.has_tenants for source in self.sources.values())
        self.sessions = None if engine is None else make_sessions(engine, self.store)
        self.proxies = Proxies(settings.trusted_proxies)
        self.announcer = Announcer(self.store.wakeups)
        announce = self.announcer.announce
        received, tenants = (self.sources, self.tenants) if parent is None else ({}, {})
        self.reception = Reception(
            self.store, received, settings, tenants, clock=clock, wake=self.wake_worker, announce=announce
        )
        self.readiness = Readiness(self)
        self.http_client = HttpClient()
        self.breakers: dict[str, CircuitBreaker] = {}  # by origin
        self.publishers, self.broker_targets = Publishers(), BrokerTargets(configuration.settings.effect_targets)
        if parent is None:
            register_address_effects(self)
        self.email_projection: EmailProjection | None = None
        self.consumers = make_consumers(self, parent)
        self.roster = Roster(self.store, self.handlers, self.sources, announce=self._announce_work, clock=clock)
        self.settings_watch: SettingsWatch = SettingsWatch(self.store)
        self.settings_watch.add(self.consumers.load)
        self.managed_sources: ManagedSources = make_managed_sources(self) if parent is None else parent.managed_sources
        self.roster.is_left_to_others = self.consumers.is_left_to_others
        self.roster.register_consumers = self.consumers.register
        self.heartbeat: Heartbeat | None = None
        self.processor: Processor | None = None
        self.worker: Worker | None = None
        self.consumer_workers: list[Worker] = []
        self.relay: Relay | None = None
        self._background = BackgroundTasks(self)
        self.parts: list[Part] = []
        self.work_queue: WorkQueue | None = None
        self.companions: list[Companion] = []
        self.lifecycle = Lifecycle(open=self._open, close=self._close)
        self._store_is_open = False
        self._deadline = Deadline()
        self.shards = make_shards(self)
        self.all_shards: Store = self.store if self.shards is None else self.shards.federation

    # -- parts that are built on first use ------------------------------------------------------------------------

    @cached_property
    def email(self) -> "Email":
        """Message status, suppressions and counts, derived from email events."""
        from oncehook.email import Email

        return Email(self.opened_store, self.settings)

    @cached_property
    def metrics_exporter(self) -> MetricsExporter:
        """The metrics of this process and of the database."""
        return MetricsExporter(self.all_shards, self.sources, replica=lambda: self.replica)

    @cached_property
    def alerts(self) -> "AlertMonitor":
        """The alert rules that a worker evaluates, and the alert targets."""
        from oncehook.alerts import AlertMonitor, read_alerts

        return AlertMonitor(
            self.store,
            read_alerts(self.configuration.alerts),
            self.sources,
            self.http_client,
            base=self.configuration.dashboard.get("public_url"),
            clock=self.clock,
        )

    # -- sources --------------------------------------------------------------------------------------------------

    def add_source(
        self, name: str, settings: SourceSettings, *, in_file: bool = False, secrets_for: SecretsFor | None = None
    ) -> Source:
        if name in self.sources:
            raise ConfigurationError(
                f"sources.{name} is defined twice: in the configuration and in code, or twice in code"
            )
        source = make_source(self, name, settings)
        if source.has_tenants:
            self.tenants[name] = make_tenant_cache(self, source, secrets_for)
        self.sources[name] = source
        (self.skip_failed.add if settings.serial_failed == "skip" else self.skip_failed.discard)(name)
        self.horizons[name] = horizon(name, settings, source.provider, self.settings)
        retry = with_fields(Retry(), source.retry, f"sources.{name}.retry")
        self.handlers.set_defaults(name, retry=retry, timeout=settings.timeout or DEFAULT_TIMEOUT)
        if settings.forward is not None:
            forward_source(self, source, trusted=in_file)
        if settings.email:
            project_email(self, source, unhandled=settings.forward is None)
        forward_to_consumers(self, source)
        self.consumers.apply()
        return source

    def add_consumer(self, name: str, settings: ConsumerSettings, *, in_file: bool = False) -> None:
        """Add a consumer with settings. A consumer that only has handlers needs none."""
        self.consumers.add(name, settings, in_file=in_file)
        for source in self.sources.values():
            forward_to_consumer(self, name, source)

    def load_secrets(self) -> None:
        """Resolve every secret that is a reference. Raises ConfigurationError if one is not set.

        Secrets are read at the start and not before, so tests, migrations and CI can import your module without them.
        """
        self.store.load_keys()
        for source in self.sources.values():
            source.load_secrets()
        self.broker_targets.load_secrets()
        for forward in self.forwards.values():
            forward.load_secrets()
        if self.configuration.alerts or "alerts" in vars(self):
            self.alerts.load_targets()

    # -- handlers -------------------------------------------------------------------------------------------------

    def outbox(self) -> Outbox:
        """A new transaction for a handler, with its effects and entities. It has not begun yet."""
        begin = self.store.transaction if self.sessions is None else self.sessions.transaction
        return Outbox(begin, self.store.effects, self.effects, self.canonicals, self._after_commit)

    def _after_commit(self, outbox: Outbox) -> None:
        for noop in outbox.noops:
            signals.record_noop(noop.leased, noop.reason, noop.scope, noop.key)
        if self.relay is not None and any(request.new for request in outbox.requests):
            self.relay.wake()

    async def rehearse(self, receipt: Receipt) -> Rehearsal:
        """Run a receipt's handler in a transaction that is rolled back, and return what it would do."""
        rehearse = await make_rehearse(self, self.store)
        return await rehearse(receipt)

    # -- running --------------------------------------------------------------------------------------------------

    def set_concurrency(self, concurrency: int) -> None:
        """Override the setting `concurrency`, from the next start on."""
        self.settings = self.store.settings = replace(self.settings, concurrency=concurrency)

    def set_fast_paths(self, fast: bool) -> None:
        """Override the setting `fast_paths`, from the next start on."""
        self.settings = self.store.settings = replace(self.settings, fast_paths=fast)

    @property
    def is_running(self) -> bool:
        return self.lifecycle.is_running

    def attach(self, companion: Companion) -> None:
        """Start and stop `companion` with this inbox if it is mounted in an app. Start it now if the inbox runs."""
        self.companions.append(companion)
        if self.is_running and self.is_mounted:
            companion.start()

    async def start(self) -> None:
        """Open the store and accept deliveries. If another call is starting the inbox, wait for it."""
        await self.lifecycle.start()

    async def stop(self) -> None:
        """Finish running work, write queued data and close the store. The store is closed even if this is cancelled."""
        await self.lifecycle.stop()

    def lifespan(self) -> AbstractAsyncContextManager[None]:
        """A context manager that starts the inbox, and stops it even if the block is cancelled."""
        return self.lifecycle.lifespan()

    async def _open(self) -> None:
        self.readiness.reset()
        try:
            self.load_secrets()
            for companion in self.companions if self.is_mounted else ():
                companion.start()
            check_configuration(self)
            await self._open_store()
            self.reception.start()
            await self._start_parts()
        except BaseException:
            await stop_all(self.companions)
            raise
        self.settings_watch.start()
        log_warnings(self)
        if self.has_worker:
            self.start_worker()
        signals.emit("started", sources=sorted(self.sources), database=self.settings.database.partition(":")[0])

    async def _start_parts(self) -> None:
        self.parts = make_parts(self)
        try:
            await start_parts(self.parts)
        except BaseException:
            await self.reception.stop()
            await self._close_store()
            raise

    async def _open_store(self) -> None:
        if self.sessions is not None:
            self.sessions.check_handlers(self.handlers)
        self.store.settings = replace(self.settings, concurrency=all_slots(self))
        await self.store.open()
        try:
            await check_schema(self, self.store)
            await self.settings_watch.load()
            check_sources(self)
            await check_encryption(self)
            self.consumers.check(has_worker=self.has_worker, removed=self.managed_sources.rows)
            await self.consumers.register(starting=True)
            if self.sessions is not None:
                await self.sessions.check_database()
        except BaseException:
            await self.store.close()
            raise
        self._store_is_open = True

    def opened_store(self) -> AbstractAsyncContextManager[Store]:
        """The store of a running inbox. If the inbox is not running, a store that is open only for the block."""
        return nullcontext(self.all_shards) if self._store_is_open else open_store(self)

    async def _close_store(self) -> None:
        self._store_is_open = False
        await self.store.close()

    async def _close(self) -> None:
        async with AsyncExitStack() as last:
            last.push_async_callback(self._close_store)
            last.push_async_callback(self._stop_heartbeat)
            await self._stop_in_time(self._finish())
        self._deadline.clear()
        signals.emit("stopped")

    async def _stop_in_time(self, *steps: Coroutine[Any, Any, None]) -> None:
        """Run shutdown steps until the deadline that all of them share: the database may not respond."""
        seconds = self.settings.stop_grace + STOP_MARGIN
        if not await self._deadline.run(seconds, *steps):
            signals.emit("stop_timed_out", seconds=seconds)

    async def _finish(self) -> None:
        await self.settings_watch.stop()
        await self._background.stop()
        await stop_parts(self.parts)
        await stop_all(self.companions)
        await self.roster.stop()
        await self.stop_work()
        await self._stop_heartbeat()
        await self.http_client.close()
        await self.publishers.close()
        await self.reception.stop()
        await self.announcer.stop()

    async def _stop_heartbeat(self) -> None:
        heartbeat, self.heartbeat = self.heartbeat, None
        if heartbeat is not None:
            self.processor = self.reception.receiver.inline = None
            await asyncio.to_thread(heartbeat.stop)

    async def stop_work(self) -> None:
        """Stop leasing, and let running handlers and effects finish within `stop_grace`."""
        worker, relay, self.worker, self.relay = self.worker, self.relay, None, None
        workers, self.consumer_workers = self.consumer_workers, []
        parts = [part for part in (worker, *workers, relay, self.reception.receiver.inline) if part is not None]
        await self._stop_in_time(*(part.stop(self.settings.stop_grace) for part in parts))

    def start_processor(self) -> Processor:
        """Build the processor that runs handlers: for the worker, for inline sources and for tests."""
        if self.processor is None:
            settings = self.settings
            self.heartbeat = Heartbeat(self.store.heartbeat_connection(), settings.lease, self.clock)
            self.heartbeat.start()
            self.processor = make_processor(self, self.heartbeat)
            self.reception.receiver.inline = InlineReceiver(
                self.store, self.reception.receiver.inline_claims, self.processor, self.roster, settings.lease
            )
        return self.processor

    def start_worker(self) -> None:
        """Process receipts in this process, and start the relay and the background tasks of a worker."""
        self.worker, self.consumer_workers = make_workers(self)
        for worker in (self.worker, *self.consumer_workers):
            worker.start()
        self.roster.start()
        self.relay = self._background.start()

    def _announce_work(self) -> None:
        """Wake the workers of this and other processes."""
        self.wake_worker()
        self.announcer.announce()

    def wake_worker(self) -> None:
        """Wake the workers of this process, if it has any."""
        for worker in () if self.worker is None else (self.worker, *self.consumer_workers):
            worker.wake()
