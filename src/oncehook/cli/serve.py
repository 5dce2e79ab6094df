"""`oncehook serve`: the inbox as a service."""

import asyncio
import contextlib
import gc
import math
import os
import secrets
import signal
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click
import uvicorn

from oncehook.cli.app import app_name, app_option, configured_inbox
from oncehook.cli.options import config_option
from oncehook.cli.processes import run_processes
from oncehook.cli.shutdown import stop_on_signals
from oncehook.http_client.client import parse_url
from oncehook.inbox import Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.observability import metrics, signals
from oncehook.providers.source import Source
from oncehook.receiver.fast_protocol import FastProtocol
from oncehook.receiver.limited_protocol import LimitedProtocol, close_unfinished
from oncehook.receiver.protocol_check import choose_protocol
from oncehook.receiver.request import MOST_HEAD
from oncehook.runtime import Runtime
from oncehook.web.app import Service

if TYPE_CHECKING:
    from oncehook.web.dashboard import Dashboard

RUN_KEY = "ONCEHOOK_RUN_KEY"


@click.command("serve")
@click.argument("app", required=False)
@config_option
@app_option
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for every interface."
)
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 picks a free one.")
@click.option("--processes", default=1, show_default=True, type=click.IntRange(1, 64), help="How many, on PostgreSQL.")
@click.option("--reuse-port", is_flag=True, help="Let another `serve --reuse-port` take over this port without a gap.")
@click.option("--no-worker", is_flag=True, help="Only take deliveries; `oncehook worker` does the work elsewhere.")
@click.option("--no-dashboard", is_flag=True, help="Only the door and the probes: no dashboard and no API.")
@click.option("--no-fast-paths", is_flag=True, help="Use the plain variant of every optimisation (`fast_paths`).")
@click.option("--concurrency", type=click.IntRange(1, 1000), help="How many handlers at once.  [default: 16]")
@click.option("--fd", type=int, hidden=True, help="The listening socket, from the parent of several processes.")
def command(
    app: str | None,
    config: str | None,
    host: str,
    port: int,
    processes: int,
    reuse_port: bool,
    no_worker: bool,
    no_dashboard: bool,
    no_fast_paths: bool,
    concurrency: int | None,
    fd: int | None,
) -> None:
    """Run the inbox as a service: the door at POST /webhooks/SOURCE, the dashboard at /, and the probes /healthz and
    /readyz. With nobody configured who may sign in, it prints an address with a token of this run.

    APP is module:inbox, looked up with the current directory on the path; by default it is `app` in oncehook.toml.
    Without either, sources come from the configuration alone.

    \b
    oncehook serve
    oncehook serve hooks:inbox --port 9000
    oncehook serve --config /etc/oncehook.toml --host 0.0.0.0 --processes 2
    """
    inbox = configured_inbox(config, app)
    runtime = inbox._runtime
    runtime.load_secrets()  # before anything listens, and before other processes are started
    if no_worker:
        runtime.works = False
    if concurrency is not None:
        runtime.set_concurrency(concurrency)
    if no_fast_paths:
        runtime.set_fast_paths(False)
    if processes > 1 and runtime.store.dialect.single_writer:
        raise ConfigurationError(
            "--processes needs PostgreSQL: on SQLite one process writes, and more would only wait for it"
        )
    signals.configure(runtime.settings.log_level, runtime.settings.log_format)
    dashboard = None if no_dashboard else make_dashboard(runtime)
    listener = socket.socket(fileno=fd) if fd is not None else listen(host, port, reuse_port=reuse_port)
    if processes > 1 and fd is None:
        options = _passed_on(config, no_worker, no_dashboard, no_fast_paths, concurrency)
        token = None
        if dashboard is not None:
            os.environ[RUN_KEY], token = dashboard.run_key, dashboard.access.run_token
        sys.exit(run_processes(processes, listener, app_name(runtime.configuration, app) or "", options, token=token))
    serve(inbox, listener, dashboard, announced=fd is None)


def make_dashboard(runtime: Runtime) -> "Dashboard":
    """The dashboard of this run. Of several processes each has the key of the one that started it."""
    from oncehook.web.dashboard import Dashboard  # what it needs is for nobody else to import

    key = os.environ.pop(RUN_KEY, None) or secrets.token_hex(32)  # no handler's own child needs to know it
    return Dashboard(runtime, key)


def _passed_on(
    config: str | None, no_worker: bool, no_dashboard: bool, no_fast_paths: bool, concurrency: int | None
) -> list[str]:
    """The options that each of several processes is started with."""
    options = ["--no-worker"] * no_worker + ["--no-dashboard"] * no_dashboard + ["--no-fast-paths"] * no_fast_paths
    options += [] if config is None else ["--config", config]
    return options if concurrency is None else [*options, "--concurrency", str(concurrency)]


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only if told so
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        if not hasattr(socket, "SO_REUSEPORT"):
            raise ConfigurationError("--reuse-port needs Linux or macOS: this system cannot share a port")
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigurationError(
            f"cannot listen on {host}:{port}: {error}. Choose another with --host and --port"
        ) from None
    return listener


def announce(runtime: Runtime, listener: socket.socket, token: str | None = None) -> None:
    """Say on standard output where to deliver and where to look: addresses, ready to be pasted."""
    host, port = listener.getsockname()[:2]
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    click.echo(f"Oncehook on {base}  (Ctrl-C stops it)")
    width = max(map(len, runtime.sources), default=0)
    for name, source in sorted(runtime.sources.items()):
        unsigned = "   ! accepts unsigned deliveries" if not source.is_verified else ""
        doubtful = "   ! this scheme is not confirmed" if source.provider.support == "unconfirmed" else ""
        waits = "   ! waits for its secret" if source.waits_for_secret else ""
        title = source.provider.title or source.provider_name
        handled = name in runtime.handlers.handled.sources or not runtime.works
        leaves = "" if handled else "   ! no handler in this process: it takes no work of this source"
        notes = f"{_forwarding(source)}{unsigned}{doubtful}{waits}{leaves}"
        click.echo(f"  {base}/webhooks/{name:<{width}}   {title}{notes}")
    if not runtime.sources:
        click.echo("  no sources yet: `oncehook init` writes a configuration to start from")
    if token is not None:
        click.echo(f"  {base}/?token={token}   the dashboard, until it stops")
    sys.stdout.flush()


def _forwarding(source: Source) -> str:
    if source.settings.forward is None:
        return ""
    signed = "" if source.settings.forward_secret else ", unsigned"
    return f"   → {parse_url(source.settings.forward).origin}{signed}"


class Server(uvicorn.Server):
    """uvicorn, but signals are ours: it would raise SIGTERM again after the drain, and the exit code must be 0."""

    dashboard: "Dashboard | None" = None

    def __init__(self, config: uvicorn.Config, runtime: Runtime) -> None:
        super().__init__(config)
        self.runtime = runtime

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain: what streams on ends now; deliveries, handlers and effects have one grace together."""
        if self.dashboard is not None:
            self.dashboard.close()
        await asyncio.gather(super().shutdown(sockets), self.runtime.end_work())
        if self.dashboard is not None:
            await self.dashboard.stop()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop_on_signals(self) -> None:
        """From now on SIGINT and SIGTERM drain and end this server, also while it is still starting."""
        stop_on_signals(lambda number: self.handle_exit(number, None), self.runtime.settings.stop_grace)


def most_connections() -> int | None:
    """As many as there are file descriptors, less some for the database and files; more are told 503."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    return max(16, min(soft, 1_000_000) - 64)


def make_server(
    inbox: Inbox, dashboard: "Dashboard | None" = None, protocol: type[asyncio.Protocol] | str | None = None
) -> Server:
    """The server as it is tuned for the receiver: no proxy headers, no access log, no work per request without need."""
    server = Server(
        uvicorn.Config(
            Service(inbox, dashboard),
            http=protocol or (FastProtocol if inbox._runtime.settings.fast_paths else LimitedProtocol),
            h11_max_incomplete_event_size=MOST_HEAD,
            limit_concurrency=most_connections(),
            lifespan="off",
            interface="asgi3",
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_config=None,
            log_level="critical",
            timeout_graceful_shutdown=math.ceil(inbox._runtime.settings.stop_grace),
        ),
        inbox._runtime,
    )
    server.dashboard = dashboard
    return server


def serve(inbox: Inbox, listener: socket.socket, dashboard: "Dashboard | None", *, announced: bool) -> None:
    """Run until SIGTERM or SIGINT, then drain. Where to deliver is said once deliveries can be taken."""

    async def run() -> None:
        runtime = inbox._runtime
        protocol = await choose_protocol(fast=runtime.settings.fast_paths)
        server = make_server(inbox, dashboard, protocol)
        server.stop_on_signals()
        if not announced:  # one of several: it ends with its parent, whose end of this pipe closes then
            asyncio.get_running_loop().add_reader(0, server.handle_exit, signal.SIGTERM, None)
        runtime.is_mounted = False  # its own dashboard is served, if any
        async with inbox.lifespan():
            if announced:
                announce(runtime, listener, dashboard.access.run_token if dashboard else None)
            gc.collect()
            gc.freeze()  # what start-up made stays; the collector need not walk it again and again
            gc.set_threshold(50_000, 20, 50)
            if runtime.store.dialect.single_writer:
                # The writer's thread needs the GIL back after each statement; by default it waits 5 ms for it.
                sys.setswitchinterval(0.0005)
            unfinished = close_unfinished(server.server_state.connections, runtime.settings.receive_timeout)
            beside = [asyncio.create_task(unfinished), asyncio.create_task(metrics.write_periodically())]
            try:
                await server.serve(sockets=[listener])
            finally:
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)

    try:
        import uvloop
    except ModuleNotFoundError:  # Windows
        asyncio.run(run())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
