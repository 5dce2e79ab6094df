"""Inbox: the public face of the library. What is behind it is in `runtime`."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.options import InboxOptions, SourceOptions
from oncehook.config.settings import Configuration, Settings, load, read_source, read_table
from oncehook.handlers.registration import Registration
from oncehook.providers.certificates import Certificates
from oncehook.providers.source import Source
from oncehook.receiver.request import Receive, Scope, Send
from oncehook.runtime import Runtime

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
        self._dashboard: MountedDashboard | None = None
        if database is None or config is not None:
            for name, source in configuration.sources.items():
                self._runtime.add_source(name, source, in_file=True)

    def source(self, name: str, *, secrets: Sequence[str] = (), **settings: Unpack[SourceOptions]) -> Source:
        """Add a source: deliveries to `/<name>`. The keys are those of `[sources.NAME]` in the file."""
        return self._runtime.add_source(name, read_source(name, {"secrets": list(secrets), **settings}))

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
        await self._runtime.ready()

    # -- ASGI -----------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        elif scope["type"] == "http":
            await self._runtime.reception.enter(source_name(scope), scope, receive, send)
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
