"""Inbox: the public face of the library. What is behind it is in `runtime`."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.configuration import Configuration, load, read_source, read_table
from oncehook.config.options import InboxOptions, SourceOptions
from oncehook.config.settings import Settings
from oncehook.handlers.registration import Registration
from oncehook.model.receipt import Filter, Receipt
from oncehook.model.values import Duration, positive_duration
from oncehook.model.values import rate as parse_rate
from oncehook.operations.pause import pause, resume
from oncehook.operations.prune import Pruned
from oncehook.operations.rehearse import Rehearsal
from oncehook.operations.replay import Replayed, bounded, pages, replay, survey
from oncehook.operations.selection import EventFilter, find_events, find_receipts, make_filter
from oncehook.providers.certificates import Certificates
from oncehook.providers.source import Source
from oncehook.receiver.request import Receive, Scope, Send
from oncehook.runtime import Runtime
from oncehook.runtime.pruning import prune_all
from oncehook.runtime.rehearsing import rehearsing
from oncehook.store.rows import Selection
from oncehook.store.store import Store

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from oncehook.email import Email
    from oncehook.web.mounted import MountedDashboard


class Inbox(Registration):
    """A webhook inbox: an ASGI app that takes `POST /<source>`.

    Without arguments it takes database, sources and settings from `oncehook.toml` and the environment, and code adds to
    them. With a database given here and no `config`, the sources are those given here too. Mount it with
    `app.mount("/webhooks", inbox)` and `lifespan=inbox.lifespan`.
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
        configuration = config if isinstance(config, Configuration) else load(config)
        given = {**settings} if database is None else {**settings, "database": database}
        self._runtime = Runtime(
            configuration,
            replace(configuration.settings, **read_table(Settings, given, "Inbox: ")),
            worker=worker,
            clock=clock,
            certificates=certificates or Certificates(),
            engine=engine,
        )
        super().__init__(self._runtime.handlers, self._runtime.effects, self._runtime.canonicals)
        self._receive = self._runtime.reception.enter
        self._dashboard: MountedDashboard | None = None
        if database is None or config is not None:
            for name, source in configuration.sources.items():
                self._runtime.add_source(name, source, in_file=True)

    def source(self, name: str, *, secrets: Sequence[str] = (), **settings: Unpack[SourceOptions]) -> Source:
        """Add a source: deliveries to `/<name>`. The keys are those of `[sources.NAME]` in the file.

        Returns the source; its attributes are internal.
        """
        given = secrets if isinstance(secrets, str) else list(secrets)  # a text is refused
        return self._runtime.add_source(name, read_source(name, {"secrets": given, **settings}))

    @property
    def email(self) -> "Email":
        """The status of messages, the suppressed addresses and the counts that follow from email events."""
        return self._runtime.email

    @property
    def dashboard(self) -> "MountedDashboard":
        """The dashboard and the JSON API, as an ASGI app to mount: `app.mount("/hooks-admin", inbox.dashboard)`."""
        if self._dashboard is None:
            from oncehook.web.mounted import MountedDashboard  # what it needs is for nobody else to import

            self._dashboard = MountedDashboard(self)
            self._runtime.attach(self._dashboard)
        return self._dashboard

    # -- operations -----------------------------------------------------------------------------------------------

    async def events(self, *, limit: int | None = None, **wanted: Unpack[EventFilter]) -> AsyncIterator[Receipt]:
        """The receipts of events, newest first, as `oncehook events` lists them; at most `limit`, all unless given.

        `async for receipt in inbox.events(source="stripe", status="failed", since="2h")`. This and the other operations
        work on a running inbox and on one that is not started.
        """
        async with self._runtime.opened_store() as store:
            async for receipt in find_events(store, make_filter(**wanted), limit):
                yield receipt

    async def replay(
        self,
        *receipts: int | str,
        dry_run: bool = False,
        handled_by: str | None = None,
        rate: str | None = None,
        actor: str | None = None,
        progress: Callable[[Replayed], None] | None = None,
        **wanted: Unpack[EventFilter],
    ) -> Replayed:
        """Have finished events handled again, as `oncehook replay` does: those with these receipt numbers or event ids,
        or all that a filter picks. Returns how many matched and moved, and why others did not.

        With `dry_run` nothing is written. `handled_by` is a version of your code that has attempted them. `rate`, such
        as "50/s", is how fast they go back to the queue. `actor` is recorded as who did it.
        """
        pace = None if rate is None else parse_rate(rate)
        async with self._runtime.opened_store() as store:
            selection = await _select(store, receipts, wanted, handled_by)
            if dry_run:
                return await survey(store, await bounded(store, selection))
            done = await replay(store, selection, actor=actor, rate=pace, progress=progress)
        self._runtime.wake_worker()
        return done

    async def rehearse(
        self, *receipts: int | str, handled_by: str | None = None, **wanted: Unpack[EventFilter]
    ) -> list[Rehearsal]:
        """Run the handlers of finished events in transactions that are rolled back: `oncehook replay --rehearse`.

        Returns what each handler would do. Calls that a handler makes itself are really made.
        """
        async with self._runtime.opened_store() as store:
            rehearse = await rehearsing(self._runtime, store)
            selection = await bounded(store, await _select(store, receipts, wanted, handled_by))
            return [
                await rehearse(receipt)
                async for page in pages(store, selection)
                for receipt, obstacle in page
                if obstacle is None
            ]

    async def pause(
        self, source: str, *, duration: Duration | None = None, reason: str | None = None, actor: str | None = None
    ) -> bool:
        """Let the events of a source wait, in every process and after a restart, until it is resumed or for `duration`.

        Returns False if it was paused before.
        """
        try:
            seconds = None if duration is None else positive_duration(duration)
        except ValueError as error:
            raise ValueError(f"duration={duration!r}: {error}") from None
        known = self._runtime.sources
        async with self._runtime.opened_store() as store:
            return await pause(store, source, known=known, actor=actor, reason=reason, seconds=seconds)

    async def resume(self, source: str, *, actor: str | None = None) -> bool:
        """Have the events of a paused source handled again. Returns False if it was not paused."""
        async with self._runtime.opened_store() as store:
            changed = await resume(store, source, known=self._runtime.sources, actor=actor)
        self._runtime.wake_worker()
        return changed

    async def prune(self, *, dry_run: bool = False) -> Pruned | None:
        """Remove receipts and payloads that are past their retention, as a worker does once an hour.

        Returns how many, by source; None if another process is pruning. With `dry_run` it counts, and removes nothing.
        """
        runtime = self._runtime
        async with runtime.opened_store() as store:
            return await prune_all(store, runtime.settings, runtime.horizons.values(), dry_run=dry_run)

    # -- running --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store. From here on deliveries are taken, and handlers run unless `worker=False`."""
        await self._runtime.start()

    async def stop(self) -> None:
        """Finish what is under way, write what waits, close the store: that in any case, even if this is cancelled."""
        await self._runtime.stop()

    def lifespan(self, app: object = None) -> AbstractAsyncContextManager[None]:
        """For `FastAPI(lifespan=inbox.lifespan)`, or inside a lifespan of your own."""
        return self._runtime.lifespan()

    async def ready(self) -> None:
        """Return if an event could be committed now, else raise Unavailable, within 2 seconds whatever happens."""
        await self._runtime.readiness.check()

    async def metrics(self) -> bytes:
        """The metrics of this process and of the database, in Prometheus' text format: for an app's own `/metrics`."""
        return await self._runtime.metrics_exporter.text()

    # -- ASGI -----------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._receive(source_name(scope), scope, receive, send)
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


async def _select(
    store: Store, receipts: Sequence[int | str], wanted: EventFilter, handled_by: str | None
) -> Selection:
    """The events that are named, or that a filter picks: one of the two."""
    condition = make_filter(**wanted)
    is_filtered = condition != Filter() or handled_by is not None
    if bool(receipts) == is_filtered:
        raise ValueError('name receipts, or pick some with a filter such as status="failed" (not both, not neither)')
    numbers = await find_receipts(store, receipts) if receipts else None
    return Selection(condition, receipts=numbers, handled_by=handled_by)


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
