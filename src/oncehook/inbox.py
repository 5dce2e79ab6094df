"""Inbox: sources, and the door to them; start and stop. The only place that wires the steps together."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from oncehook.alerts import Alerts, read_alerts
from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.concurrency.stopping import Deadline
from oncehook.config.settings import Configuration, Horizon, Settings, load, read_source, read_table
from oncehook.effects.effect import EFFECT_TIMEOUT, HTTP, Target
from oncehook.effects.relay import Relay
from oncehook.email import Email, Folding
from oncehook.email.folding import BATCH, folded
from oncehook.handlers.forward import POLICY, Forward, Posting
from oncehook.handlers.outbox import Outbox
from oncehook.handlers.registration import Registry
from oncehook.handlers.registry import DEFAULT_TIMEOUT, Handler
from oncehook.handlers.roster import Roster
from oncehook.http_client.circuit_breaker import Target as ForwardTarget
from oncehook.http_client.client import Outgoing
from oncehook.model.errors import ConfigurationError, Unavailable
from oncehook.model.receipt import Claim, Claimed, Receipt
from oncehook.model.retry import Retry, with_fields
from oncehook.observability import signals, tracing
from oncehook.observability.code_version import checked_out
from oncehook.observability.meter import Meter
from oncehook.operations.prune import Janitor, effect_horizon, horizon
from oncehook.operations.rehearse import Rehearsal, rehearse
from oncehook.providers.certificates import Certificates
from oncehook.providers.proxied import Proxies
from oncehook.providers.source import Source
from oncehook.receiver.asgi import AsgiReceiver
from oncehook.receiver.claim import Claimer
from oncehook.receiver.duplicates import DuplicateLog
from oncehook.receiver.inline import Inline
from oncehook.receiver.rejections import AckLog, RefusalLog, RejectionLog, SecretLog
from oncehook.receiver.request import Reads, Receive, Scope, Send
from oncehook.receiver.steps import Receiver
from oncehook.store import make_store
from oncehook.store.protocols import Store
from oncehook.store.transaction import django_writes_apart
from oncehook.worker.heartbeat import Heartbeat
from oncehook.worker.process import Processor
from oncehook.worker.rescue import keep_rescuing
from oncehook.worker.wakeups import Announcer, keep_listening
from oncehook.worker.worker import Worker

if TYPE_CHECKING:
    from oncehook.web.mounted import MountedDashboard

F = TypeVar("F", bound=Callable[..., Any])
READY_SECONDS = 1.8

STOP_MARGIN = 3.0
"""Seconds beyond `stop_grace` in which everything but handlers and effects has to end."""


class Inbox(Registry):
    """A webhook inbox: an ASGI app that takes `POST /<source>`.

    Without arguments it takes database, sources and settings from `oncehook.toml` and the environment, and code adds to
    them. With a database given here and no `config`, the sources are those given here too. Mount it with
    `app.mount("/webhooks", inbox)` and `lifespan=inbox.lifespan`.
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        config: Configuration | str | None = None,
        worker: bool = True,
        clock: Clock = SYSTEM,
        certificates: Certificates | None = None,
        engine: Any = None,
        **settings: Any,
    ) -> None:
        self.configuration = config if isinstance(config, Configuration) else load(config)
        if database is not None:
            settings["database"] = database
        self.settings: Settings = replace(self.configuration.settings, **read_table(Settings, settings, "Inbox: "))
        self.clock = clock
        self.certificates = certificates or Certificates()
        self.proxies = Proxies(self.settings.trusted_proxies)
        self.sources: dict[str, Source] = {}
        self.store: Store = make_store(self.settings)
        self.sessions = None if engine is None else make_sessions(engine, self.store)
        self.duplicates = DuplicateLog(self.store)
        self.announcer = Announcer(self.store)
        self.claimer = Claimer(
            self.store,
            observe=self._observe,
            limit=self.settings.intake_limit,
            limit_bytes=self.settings.intake_bytes,
            timeout=self.settings.claim_timeout,
            clock=clock,
        )
        reads = Reads(time_limit=self.settings.receive_timeout, limit_bytes=self.settings.intake_bytes)
        self.rejections = RejectionLog(self.store)
        self.secrets = SecretLog(self.store, self.sources)
        self.meter = Meter(clock)
        self.refusals = RefusalLog(self.store, self.meter)
        self.acks = AckLog(self.store, self.meter)
        self.receiver = Receiver(
            self.sources, self.claimer, self.rejections, limit_bytes=reads.limit_bytes, clock=clock, meter=self.meter
        )
        self.enter = AsgiReceiver(self.receiver, reads)
        super().__init__()
        self.store.longest_handler = lambda: self.handlers.longest
        self.outgoing = Outgoing()
        self.targets: dict[str, ForwardTarget] = {}
        self.forwards: dict[str, Forward] = {}
        self.alerts = Alerts(
            self.store,
            read_alerts(self.configuration.alerts),
            self.sources,
            self.outgoing,
            base=self.configuration.dashboard.get("public_url"),
            clock=clock,
        )
        posting = Posting(self.outgoing, self.configuration.settings.effect_targets, self.targets, clock)  # of the file
        self.effects.add(Target(HTTP, None, posting.perform, POLICY, EFFECT_TIMEOUT))
        self.relay: Relay | None = None
        self.email = Email(self.store, self.settings)
        self.folding = self.handlers.first = Folding(self.email.policy)
        self.works = worker
        self.roster = Roster(self.store, self.handlers, self.sources, announce=self._announce_work, clock=clock)
        self.heartbeat: Heartbeat | None = None
        self.processor: Processor | None = None
        self.worker: Worker | None = None
        self._rescuing: asyncio.Task[None] | None = None
        self._checking: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self.horizons: dict[str, Horizon] = {}
        self.janitor: Janitor | None = None
        self._dashboard: MountedDashboard | None = None
        self.is_mounted = True  # in another app; not where Oncehook's own command is the process
        self._running = 0
        self._deadline = Deadline()
        if database is None or config is not None:
            for name, source in self.configuration.sources.items():
                self._add(name, source, in_file=True)

    # -- sources --------------------------------------------------------------------------------------------------

    def source(self, name: str, *, secrets: Sequence[str] = (), **settings: Any) -> Source:
        """Add a source: deliveries to `/<name>`. The keys are those of `[sources.NAME]` in the file."""
        return self._add(name, read_source(name, {"secrets": list(secrets), **settings}))

    def _add(self, name: str, settings: Any, *, in_file: bool = False) -> Source:
        if name in self.sources:
            raise ConfigurationError(
                f"sources.{name} is defined twice: in the configuration and in code, or twice in code"
            )
        source = Source(
            name,
            settings,
            own_providers=self.configuration.providers,
            max_body=self.settings.max_body,
            certificates=self.certificates,
            proxies=self.proxies,
        )
        self.sources[name] = source
        self.horizons[name] = horizon(name, settings, source.provider, self.settings)
        retry, timeout = (
            with_fields(Retry(), source.retry, f"sources.{name}.retry"),
            settings.timeout or DEFAULT_TIMEOUT,
        )
        self.handlers.set_defaults(name, retry=retry, timeout=timeout)
        if settings.forward is not None:
            forward = Forward(source, self.outgoing, self.targets, trusted=in_file, clock=self.clock)
            self.handlers.add(forward.handler)
            self.forwards[name] = forward
        if settings.email:
            self.folding.add(name, source.provider_name, natural=settings.id is not None)
            if settings.forward is None:
                self.handlers.add_projection(Handler(name, "*", folded, retry, timeout, BATCH))
        return source

    @property
    def dashboard(self) -> "MountedDashboard":
        """The dashboard and the JSON API, as an ASGI app to mount: `app.mount("/hooks-admin", inbox.dashboard)`."""
        if self._dashboard is None:
            from oncehook.web.mounted import MountedDashboard  # what it needs is for nobody else to import

            self._dashboard = MountedDashboard(self)
            if self.is_running:
                self._dashboard.start()
        return self._dashboard

    def load_secrets(self) -> None:
        """Resolve every secret that is a reference, as a start does. Raises ConfigurationError for one that is not set.

        Until then none is read: your module can be imported by tests, migrations and CI without them.
        """
        for source in self.sources.values():
            source.load_secrets()
        for forward in self.forwards.values():
            forward.load_secrets()
        self.alerts.load_targets()

    # -- what handlers ask for ------------------------------------------------------------------------------------

    def outbox(self) -> Outbox:
        """A handler's transaction, not begun yet, with what it may ask for."""
        begin = self.store.transaction if self.sessions is None else self.sessions.transaction
        return Outbox(begin, self.store, self.effects, self.canonicals, self._asked)

    def _asked(self, outbox: Outbox) -> None:
        for noop in outbox.noops:
            signals.noop(noop.leased, noop.reason, noop.scope, noop.key)
        if self.relay is not None and any(ask.new for ask in outbox.asks):
            self.relay.wake()

    async def rehearse(self, receipt: Receipt) -> Rehearsal:
        """Run a receipt's handler in a transaction that is rolled back, and tell what it would do."""
        begin = None if self.sessions is None else self.sessions.transaction
        return await rehearse(self.store, self.handlers, receipt, begin, self.effects, self.canonicals)

    # -- running --------------------------------------------------------------------------------------------------

    def set_concurrency(self, concurrency: int) -> None:
        """Run so many handlers at once, whatever the settings say. It counts from the next start on."""
        self.settings = self.store.settings = replace(self.settings, concurrency=concurrency)

    @property
    def is_running(self) -> bool:
        return self._running > 0

    async def start(self) -> None:
        """Open the store. From here on deliveries are taken."""
        self._running += 1
        if self._running > 1:
            return
        self._checking = None  # one of an earlier loop never ends
        try:
            self.load_secrets()
            if self._dashboard is not None and self.is_mounted:
                self._dashboard.start()
            effect_horizon(self.settings, self.horizons.values())
            self.alerts.check()
            self.handlers.check({name: source.settings.types for name, source in self.sources.items()})
            await self._open_store()
            self.enter.start()
            tracing.start()
            self.secrets.start()
            self.refusals.start()
            self.acks.start()
        except BaseException:
            self._running = 0
            raise
        for source in self.sources.values():
            if not source.is_verified:
                signals.emit("unverified_source", source=source.name)
            elif source.waits_for_secret:
                signals.emit("waits_for_secret", source=source.name)
        if django_writes_apart() and any(not handler.forwards_to for handler in self.handlers):
            signals.emit("django_apart", detail="use tx, or make what the ORM writes idempotent")
        if self.works:
            self.start_worker()
        signals.emit("started", sources=sorted(self.sources), database=self.settings.database.partition(":")[0])

    async def _open_store(self) -> None:
        if self.sessions is not None:
            self.sessions.check_handlers(self.handlers)
        await self.store.open()
        try:
            if self.settings.migrate == "never" and await self.store.pending_migrations():
                raise ConfigurationError("the database's schema is not up to date: run `oncehook migrate`")
            if self.sessions is not None:
                await self.sessions.check_database()
        except BaseException:
            await self.store.close()
            raise

    async def stop(self) -> None:
        """Finish what is under way, write what waits, close the store: that in any case, even if this is cancelled."""
        self._running -= 1
        if self._running > 0:
            return
        async with AsyncExitStack() as last:
            last.push_async_callback(self.store.close)
            last.push_async_callback(self._stop_heart)
            await self._in_time(self._finish())
        self._deadline.clear()
        signals.emit("stopped")

    async def _in_time(self, *parts: Coroutine[Any, Any, None]) -> None:
        """Await parts of stopping, until the one deadline of all of them: a database may not answer any more."""
        seconds = self.settings.stop_grace + STOP_MARGIN
        if not await self._deadline.keep(seconds, *parts):
            signals.emit("stop_late", seconds=seconds)

    async def _finish(self) -> None:
        for task in (self._rescuing, self._listening):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self.janitor is not None:
            await self.janitor.stop()
            self.janitor = None
        await self.alerts.stop()
        if self._dashboard is not None:
            await self._dashboard.stop()
        await self.roster.stop()
        await self.end_work()
        await self._stop_heart()
        await self.outgoing.close()
        await self.claimer.drain()
        await self.duplicates.drain()
        await self.rejections.stop()
        await self.secrets.stop()
        await self.refusals.stop()
        await self.acks.stop()
        await self.announcer.stop()

    async def _stop_heart(self) -> None:
        heartbeat, self.heartbeat = self.heartbeat, None
        if heartbeat is not None:
            self.processor = self.receiver.inline = None
            await asyncio.to_thread(heartbeat.stop)

    async def end_work(self) -> None:
        """Lease no more, and let handlers and effects that are under way end, within `stop_grace` altogether."""
        worker, relay, self.worker, self.relay = self.worker, self.relay, None, None
        ending = [one for one in (worker, relay, self.receiver.inline) if one is not None]
        await self._in_time(*(one.stop(self.settings.stop_grace) for one in ending))

    def start_processor(self) -> Processor:
        """Be able to run handlers in this process: for the worker, for inline sources, and for tests without either."""
        if self.processor is None:
            settings = self.settings
            self.heartbeat = Heartbeat(self.store.heart(), settings.lease, self.clock)
            self.heartbeat.start()
            self.processor = Processor(
                self.store,
                self.handlers,
                self.heartbeat,
                transaction=self.outbox,
                version=settings.version or checked_out(Path.cwd()),
                clock=self.clock,
                announce=self.announcer.announce,
                threads=settings.concurrency,
            )
            self.receiver.inline = Inline(self.store, self.claimer, self.processor, self.roster, settings.lease)
        return self.processor

    def start_worker(self) -> None:
        """Work off what was accepted, in this process."""
        settings = self.settings
        self.worker = Worker(
            self.store,
            self.start_processor(),
            concurrency=settings.concurrency,
            lease_seconds=settings.lease,
            poll=settings.poll,
            skip_failed=[name for name, source in self.sources.items() if source.settings.serial_failed == "skip"],
            announce=self.announcer.announce,
            handled=self.roster.handled,
        )
        self.worker.start()
        self.roster.start()
        self._listening = asyncio.create_task(keep_listening(self.store, self.worker.wake))
        self.relay = Relay(self.store, self.effects, concurrency=settings.concurrency, poll=settings.poll)
        self.relay.start()
        kept = effect_horizon(settings, self.horizons.values())
        self.janitor = Janitor(self.store, self.horizons.values(), effects=kept, email=self.email.prune)
        self.janitor.start()
        self.alerts.start()
        every, elsewhere = settings.lease / 3, self.roster.is_handled_elsewhere
        rescuing = keep_rescuing(self.store, self.handlers, self.sources, every, elsewhere)
        self._rescuing = asyncio.create_task(rescuing)

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """For `FastAPI(lifespan=inbox.lifespan)`, or inside a lifespan of your own."""
        await self.start()
        try:
            yield
        finally:
            stopping = asyncio.create_task(self.stop())
            try:
                await asyncio.shield(stopping)
            except asyncio.CancelledError:
                await stopping  # left behind, it would be cut off with the loop; whoever cancels again cuts it short
                raise

    async def ready(self) -> None:
        """Return if an event could be committed now, else raise Unavailable, within READY_SECONDS whatever happens."""
        if self._checking is None or self._checking.done():  # requests that come meanwhile share one check
            self._checking = asyncio.create_task(self.store.ping())
            self._checking.add_done_callback(lambda task: task.cancelled() or task.exception())
        done, _ = await asyncio.wait([self._checking], timeout=READY_SECONDS)
        if not done:
            raise Unavailable("the database does not take a write in time")
        self._checking.result()

    def _announce_work(self) -> None:
        """Events wait that a worker of this or another process may lease."""
        if self.worker is not None:
            self.worker.wake()
        self.announcer.announce()

    def _observe(self, pairs: Sequence[tuple[Claim, Claimed]]) -> None:
        for claim, outcome in pairs:
            if not outcome.fresh:
                self.duplicates.note(claim, outcome)
        if self.worker is not None:
            self.worker.wake()
        if any(outcome.fresh for _, outcome in pairs):
            self.announcer.announce()
        signals.claimed(pairs)

    # -- ASGI -----------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["type"] == "http":
            await self.enter(source_name(scope), scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        """Lifespan for servers that run the inbox itself; a mounted app is not sent these messages."""
        await receive()
        try:
            await self.start()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})


def make_sessions(engine: Any, store: Store) -> Any:
    """Handlers' transactions on a SQLAlchemy engine."""
    try:
        from oncehook.integrations.sqlalchemy import Sessions
    except ModuleNotFoundError:
        raise ConfigurationError("engine needs SQLAlchemy: pip install 'oncehook[sqlalchemy]'") from None
    return Sessions(engine, store)


def source_name(scope: Mapping[str, Any]) -> str:
    """The source in the path. A trailing slash is accepted, never redirected."""
    return path_below(scope).strip("/")


def path_below(scope: Mapping[str, Any]) -> str:
    """The path below where this app is mounted.

    An app that was told of a proxy's prefix has it in the root, and the proxy may have taken it from the path.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "").rstrip("/")
    for below in (root, root.removeprefix(scope.get("app_root_path", ""))):
        if path.startswith(below + "/"):
            return path[len(below) :]
    return "" if root and path == root else path
