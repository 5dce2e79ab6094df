"""Inbox: the public entry point of the library. The `runtime` package builds and runs its parts."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, Unpack

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.concurrency.surroundings import CurrentSurrounding, Surrounding
from oncehook.config.configuration import Configuration, check_settable, load, read_consumer, read_source, read_table
from oncehook.config.options import ConsumerOptions, InboxOptions, SourceOptions
from oncehook.config.settings import Settings
from oncehook.handlers.registration import Registration
from oncehook.model.receipt import Receipt
from oncehook.model.values import Duration, positive_duration
from oncehook.model.values import rate as parse_rate
from oncehook.operations.backfill import Backfilled, backfill
from oncehook.operations.pause import pause, resume
from oncehook.operations.prune import Pruned
from oncehook.operations.rehearse import Rehearsal
from oncehook.operations.replay import Replayed, pages, preview, replay, with_horizon
from oncehook.operations.selection import EventFilter, When, find_events, make_filter, parse_when, select
from oncehook.providers.certificates import Certificates
from oncehook.providers.source import Source
from oncehook.receiver.asgi import source_name
from oncehook.receiver.request import Receive, Scope, Send
from oncehook.runtime import Runtime
from oncehook.runtime.backfills import plan_for
from oncehook.runtime.gateway import Gateway
from oncehook.runtime.managed_sources import managed_horizons
from oncehook.runtime.pruning import prune_all
from oncehook.runtime.rebuild import Addition, rebuild
from oncehook.runtime.rehearsals import make_rehearse
from oncehook.tenants.lookup import SecretsFor

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from oncehook.email import Email
    from oncehook.running import RunningInbox
    from oncehook.web.mounted import MountedDashboard

T = TypeVar("T")


class Inbox(Registration):
    """A webhook inbox: an ASGI app that accepts deliveries at `POST /<source>` and runs their handlers.

    Without arguments, the inbox reads its database, sources and settings from `oncehook.toml` and the environment.
    Keyword arguments override those settings, and `inbox.source` adds sources. With `database` and no `config`, the
    inbox has only the sources and consumers that the code adds.

        inbox = Inbox("postgresql://shop@localhost/shop")
        inbox.source("stripe", secrets=["env:STRIPE_WEBHOOK_SECRET"])

        @inbox.on("stripe", "invoice.paid")
        async def invoice_paid(event: Event, tx: AsyncTransaction) -> None:
            await tx.execute("UPDATE invoices SET paid = true WHERE id = $1", event.object_id)

        app = FastAPI(lifespan=inbox.lifespan)
        app.mount("/webhooks", inbox)
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        config: Configuration | str | Path | None = None,
        worker: bool = True,
        clock: Clock = SYSTEM,
        certificates: Certificates | None = None,
        engine: "Engine | AsyncEngine | None" = None,
        **settings: Unpack[InboxOptions],
    ) -> None:
        check_settable(settings)
        configuration = config if isinstance(config, Configuration) else load(config)
        if database is not None and config is None:
            configuration = replace(configuration, shards={})  # as its sources, below
        overrides = {**settings} if database is None else {**settings, "database": database}
        self._runtime = Runtime(
            configuration,
            replace(configuration.settings, **read_table(Settings, overrides, "Inbox: ")),
            worker=worker,
            clock=clock,
            certificates=certificates or Certificates(),
            engine=engine,
        )
        self._engine = engine
        self._additions: list[Addition] = []  # sources and consumers, for a process that is forked while this one runs
        super().__init__(self._runtime.handlers, self._runtime.effects, self._runtime.canonicals)
        self._receive = self._runtime.reception.asgi
        self._dashboard: MountedDashboard | None = None
        self._gateway = Gateway(self)
        if database is None or config is not None:
            for name, source in configuration.sources.items():
                self._add(partial(Runtime.add_source, name=name, settings=source, in_file=True))
            for name, consumer in configuration.consumers.items():
                self._add(partial(Runtime.add_consumer, name=name, settings=consumer, in_file=True))

    def source(
        self,
        name: str,
        *,
        secrets: Sequence[str] = (),
        secrets_for: SecretsFor | None = None,
        **settings: Unpack[SourceOptions],
    ) -> Source:
        """Add a source, which accepts deliveries at `/<name>`.

        A secret is `env:NAME`, `file:PATH` or the value itself. The inbox tries all of them, so that you can rotate
        secrets. The other keyword arguments are the keys of `[sources.NAME]` in `oncehook.toml`. Returns the source,
        whose attributes are internal.

            inbox.source("stripe", secrets=["env:STRIPE_WEBHOOK_SECRET"], types=["invoice.*"])

        With `secrets_for`, the source has tenants, which deliver to `/<name>/<tenant>`. The function takes a tenant and
        returns its secrets, or None for an unknown tenant. It is an `async def`, or a plain `def` that runs in a
        thread. Its answers are cached: see `tenants`.

            inbox.source("stripe", secrets_for=lookup)
        """
        values = secrets if isinstance(secrets, str) else list(secrets)  # read_source rejects a plain string
        has_tenants: SourceOptions = {} if secrets_for is None else {"tenants": True}
        parsed = read_source(name, {"secrets": values, **has_tenants, **settings})
        return self._add(partial(Runtime.add_source, name=name, settings=parsed, secrets_for=secrets_for))

    def consumer(self, name: str, **settings: Unpack[ConsumerOptions]) -> None:
        """Set the options of a consumer, or add one that forwards its events.

        The keyword arguments are the keys of `[consumers.NAME]` in `oncehook.toml`. A consumer whose handlers need no
        options does not need this call.

            inbox.consumer("ledger", concurrency=4, rate="50/s")
        """
        self._add(partial(Runtime.add_consumer, name=name, settings=read_consumer(name, settings)))

    def _add(self, addition: Callable[[Runtime], T]) -> T:
        added = addition(self._runtime)
        self._additions.append(addition)
        return added

    def _own_runtime(self) -> Runtime:
        """Return the runtime. If this process was forked while it ran, build another one first."""
        if self._runtime.lifecycle.is_inherited:
            self._runtime = rebuild(self._runtime, self._additions, self._engine)
            super().__init__(self._runtime.handlers, self._runtime.effects, self._runtime.canonicals)
            self._receive = self._runtime.reception.asgi
        return self._runtime

    @property
    def email(self) -> "Email":
        """Queries on the email projection: the status of messages, suppressed addresses and counts."""
        return self._runtime.email

    @property
    def dashboard(self) -> "MountedDashboard":
        """The dashboard and the JSON API, as an ASGI app that you mount in yours.

        It requires a user or a token in the configuration.

            app.mount("/hooks-admin", inbox.dashboard)
        """
        if self._dashboard is None:
            from oncehook.web.mounted import MountedDashboard  # only a dashboard needs its dependencies

            self._dashboard = MountedDashboard(self)
            self._runtime.attach(self._dashboard)
        return self._dashboard

    def _surround(self, name: str, surrounding: Surrounding) -> None:
        """Call handlers, effects and other user functions within a context manager of the framework `name`."""
        known = self._runtime.registered.surroundings.setdefault(name, CurrentSurrounding(surrounding))
        known.current = surrounding  # also for calls of an inbox that runs already

    # -- operations -----------------------------------------------------------------------------------------------

    async def events(self, *, limit: int | None = None, **filters: Unpack[EventFilter]) -> AsyncIterator[Receipt]:
        """Yield the receipts of the events that match, newest first, as `oncehook events` lists them.

        Without `limit` it yields all of them. This and the other operations also work on an inbox that is not running.

            async for receipt in inbox.events(source="stripe", status="failed", since="2h"):
                print(receipt.event_id, receipt.last_error)
        """
        async with self._runtime.opened_store() as store:
            async for receipt in find_events(store, make_filter(**filters), limit):
                yield receipt

    async def replay(
        self,
        *receipts: int | str,
        dry_run: bool = False,
        handled_by: str | None = None,
        rate: str | None = None,
        actor: str | None = None,
        progress: Callable[[Replayed], None] | None = None,
        **filters: Unpack[EventFilter],
    ) -> Replayed:
        """Queue finished events to be handled again, as `oncehook replay` does.

        Name events by receipt number or event id, or select them with filters. An event id names the receipts of all
        consumers; with `consumer`, only that of one consumer is replayed. `handled_by` selects the events that a
        version of your code attempted. `rate`, such as "50/s", limits how fast the events are queued. `actor` is
        recorded in the audit log. With `dry_run` nothing is written. Returns how many events matched and were queued,
        and why the others were not.

            replayed = await inbox.replay(source="stripe", status="failed", since="2h")
        """
        pace = None if rate is None else parse_rate(rate)
        async with self._runtime.opened_store() as store:
            selection = await select(store, receipts, filters, handled_by)
            if dry_run:
                return await preview(store, await with_horizon(store, selection))
            done = await replay(store, selection, actor=actor, rate=pace, progress=progress)
        self._runtime.wake_worker()
        return done

    async def backfill(
        self,
        consumer: str,
        *,
        since: When,
        source: str | None = None,
        type: str | None = None,
        rate: str | None = None,
        dry_run: bool = False,
        actor: str | None = None,
        progress: Callable[[Backfilled], None] | None = None,
    ) -> Backfilled:
        """Give a consumer the events that arrived before it subscribed, as `oncehook backfill` does.

        Events whose payload was pruned are left out. The events are treated as if they arrived now: the filters of the
        source and of the consumer apply. `rate`, such as "500/s", limits how fast they are queued. An event that the
        consumer has a receipt of is left as it is, so you can call this again after an interruption.

            done = await inbox.backfill("analytics", since="30d")
        """
        pace = None if rate is None else parse_rate(rate)
        async with self._runtime.opened_store() as store:
            plan = await plan_for(
                self._runtime, store, consumer, since=parse_when(since), source=source, type=type, dry_run=dry_run
            )
            done = await backfill(store, plan, actor=actor, rate=pace, dry_run=dry_run, progress=progress)
        self._runtime.wake_worker()
        return done

    async def rehearse(
        self, *receipts: int | str, handled_by: str | None = None, **filters: Unpack[EventFilter]
    ) -> list[Rehearsal]:
        """Run the handlers of finished events in transactions that are rolled back, as `replay --rehearse` does.

        Returns what each handler would do. Network calls that a handler makes itself are real: they are not undone.
        """
        async with self._runtime.opened_store() as store:
            rehearse = await make_rehearse(self._runtime, store)
            selection = await with_horizon(store, await select(store, receipts, filters, handled_by))
            return [
                await rehearse(receipt)
                async for page in pages(store, selection)
                for receipt, obstacle in page
                if obstacle is None
            ]

    async def pause(
        self,
        source: str = "",
        *,
        consumer: str = "",
        duration: Duration | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> bool:
        """Pause a source: its events are accepted, and no process runs their handlers until the source is resumed.

        With `consumer` in place of a source, pause a consumer with all its sources; other consumers continue. The pause
        survives restarts. With `duration`, such as "30m", it ends by itself. Returns False if it was already paused.
        """
        try:
            seconds = None if duration is None else positive_duration(duration)
        except ValueError as error:
            raise ValueError(f"duration={duration!r}: {error}") from None
        known = self._runtime.consumers.names if consumer else self._runtime.sources
        async with self._runtime.opened_store() as store:
            return await pause(
                store, source, consumer=consumer, known=known, actor=actor, reason=reason, seconds=seconds
            )

    async def resume(self, source: str = "", *, consumer: str = "", actor: str | None = None) -> bool:
        """End the pause of a source or a consumer, so that workers handle its events.

        Returns False if it was not paused.
        """
        known = self._runtime.consumers.names if consumer else self._runtime.sources
        async with self._runtime.opened_store() as store:
            changed = await resume(store, source, consumer=consumer, known=known, actor=actor)
        self._runtime.wake_worker()
        return changed

    async def prune(self, *, dry_run: bool = False) -> Pruned | None:
        """Delete receipts and payloads that are past their retention, as every worker does once an hour.

        Returns the counts by source, or None if another process is pruning. With `dry_run` it only counts.
        """
        runtime = self._runtime
        async with runtime.opened_store() as store:
            managed = await managed_horizons(store, runtime.configuration.providers, runtime.settings)
            horizons = {horizon.source: horizon for horizon in managed} | runtime.horizons
            return await prune_all(store, runtime.settings, horizons.values(), dry_run=dry_run)

    # -- running --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store and accept deliveries. Unless `worker=False`, also start the worker, which runs handlers."""
        await self._runtime.start()

    async def stop(self) -> None:
        """Finish running requests and handlers, write buffered results, and close the store.

        The store is closed even if this call is cancelled.
        """
        await self._runtime.stop()

    def lifespan(self, app: object = None) -> AbstractAsyncContextManager[None]:
        """Return a context manager that starts the inbox and stops it at the end.

        Pass it to your app as `FastAPI(lifespan=inbox.lifespan)`, or enter it in your app's own lifespan:

            @asynccontextmanager
            async def lifespan(app: FastAPI) -> AsyncIterator[None]:
                async with inbox.lifespan():
                    yield
        """
        return self._runtime.lifespan()

    async def ready(self) -> None:
        """Check that the inbox can commit an event now. Raises `Unavailable` if not, within 2 seconds at most."""
        await self._runtime.readiness.check()

    async def metrics(self) -> bytes:
        """Return the metrics of this process and of the database in Prometheus' text format, for your `/metrics`."""
        return await self._runtime.metrics_exporter.text()

    @property
    def wsgi(self) -> Gateway:
        """The inbox as a WSGI app, which you mount in yours.

        The first request in each process starts the inbox there, in a thread with its own event loop. It stops when
        the process exits. `mount`, `start` and `stop` are its methods.

            app = inbox.wsgi.mount(bottle_app)
        """
        return self._gateway

    @contextmanager
    def running(self, *, worker: bool | None = None) -> "Iterator[RunningInbox]":
        """Run the inbox in a thread for one block, and yield its operations as blocking calls.

        With `worker=False`, the block runs no handlers. If the inbox already runs in a thread of this process, as in a
        WSGI app, the block uses that one.

            with inbox.running() as running:
                running.replay(source="stripe", status="failed")
        """
        from oncehook.running import RunningInbox  # it imports this module

        with self._gateway.thread.held(worker=worker) as thread:
            yield RunningInbox(self, thread)

    # -- ASGI -----------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._receive(source_name(scope), scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        """Handle the lifespan messages of a server that runs the inbox as its app. Mounted apps never get them."""
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
