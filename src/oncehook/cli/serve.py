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
from types import FrameType
from typing import TYPE_CHECKING

import click
import uvicorn

from oncehook.cli.app import app_name, app_option, configured_inbox, unused_settings
from oncehook.cli.options import config_option, handlers_option, port_option
from oncehook.cli.processes import run_processes
from oncehook.cli.shutdown import stop_on_signals
from oncehook.config.consumer_settings import ConsumerSettings
from oncehook.config.settings import SourceSettings
from oncehook.handlers.broker_forward import forward_origin
from oncehook.inbox import Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.observability import metrics, signals
from oncehook.receiver.fast_protocol import FastProtocol
from oncehook.receiver.limited_protocol import LimitedProtocol, close_unfinished
from oncehook.receiver.protocol_check import choose_protocol
from oncehook.receiver.request import CLOSE, MAX_HEAD_BYTES
from oncehook.runtime import Runtime
from oncehook.web.app import Service

if TYPE_CHECKING:
    from oncehook.web.dashboard import Dashboard

RUN_KEY = "ONCEHOOK_RUN_KEY"
NO_HANDLER = "   ! no handler in this process"


@click.command("serve")
@click.argument("app", required=False)
@config_option
@app_option
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all interfaces."
)
@port_option
@click.option(
    "--processes",
    default=1,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Number of processes; more than one needs PostgreSQL.",
)
@click.option(
    "--reuse-port", is_flag=True, help="Share the port with another `serve --reuse-port`, to restart without downtime."
)
@click.option("--no-worker", is_flag=True, help="Only receive deliveries; `oncehook worker` handles the events.")
@click.option("--no-dashboard", is_flag=True, help="Serve only the receiver and the probes: no dashboard, no API.")
@click.option("--no-fast-paths", is_flag=True, help="Disable all fast paths, as `fast_paths = false` does.")
@handlers_option
@click.option("--fd", type=int, hidden=True, help="The listening socket that the parent process passes to this one.")
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
    """Run the inbox as a service: the receiver, the workers and the dashboard.

    The receiver is at POST /webhooks/SOURCE, the dashboard at /, and the probes at /healthz and /readyz. If no
    dashboard user or token is configured, the command prints an address with a token that is valid until the server
    stops.

    APP is module:inbox, imported with the current directory on the path. The default is `app` in oncehook.toml; without
    it, the sources come from the configuration alone.

    \b
    oncehook serve
    oncehook serve hooks:inbox --port 9000
    oncehook serve --config /etc/oncehook.toml --host 0.0.0.0 --processes 2
    """
    inbox = configured_inbox(config, app)
    runtime = inbox._runtime
    runtime.load_secrets()  # fail before the socket is opened and processes are started
    if no_worker:
        runtime.has_worker = False
    if concurrency is not None:
        runtime.set_concurrency(concurrency)
    if no_fast_paths:
        runtime.set_fast_paths(False)
    if processes > 1 and runtime.store.dialect.single_writer:
        raise ConfigurationError(
            "--processes needs PostgreSQL: SQLite has one writer, so more processes would only wait for each other"
        )
    signals.configure(runtime.settings.log_level, runtime.settings.log_format)
    dashboard = None if no_dashboard else make_dashboard(runtime)
    listener = socket.socket(fileno=fd) if fd is not None else listen(host, port, reuse_port=reuse_port)
    if processes > 1 and fd is None:
        options = _child_options(config, no_worker, no_dashboard, no_fast_paths, concurrency)
        token = None
        if dashboard is not None:
            os.environ[RUN_KEY], token = dashboard.run_key, dashboard.access.run_token
        sys.exit(run_processes(processes, listener, app_name(runtime.configuration, app) or "", options, token=token))
    serve(inbox, listener, dashboard, announced=fd is None)


def make_dashboard(runtime: Runtime) -> "Dashboard":
    """The dashboard of this run. With several processes, all use the key of their parent."""
    from oncehook.web.dashboard import Dashboard  # its dependencies are imported only here

    key = os.environ.pop(RUN_KEY, None) or secrets.token_hex(32)  # popped, so that no handler's child process gets it
    return Dashboard(runtime, key)


def _child_options(
    config: str | None, no_worker: bool, no_dashboard: bool, no_fast_paths: bool, concurrency: int | None
) -> list[str]:
    """The options with which the parent starts each process."""
    options = ["--no-worker"] * no_worker + ["--no-dashboard"] * no_dashboard + ["--no-fast-paths"] * no_fast_paths
    options += [] if config is None else ["--config", config]
    return options if concurrency is None else [*options, "--concurrency", str(concurrency)]


def listen(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(
        family, socket.SOCK_STREAM, socket.IPPROTO_TCP
    )  # IPPROTO_TCP: else asyncio sets no TCP_NODELAY
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
            f"cannot listen on {host}:{port}: {error}. Choose another address with --host or --port"
        ) from None
    return listener


def announce(runtime: Runtime, listener: socket.socket, token: str | None = None) -> None:
    """Print the addresses of the sources and of the dashboard, and the consumers besides `main`."""
    host, port = listener.getsockname()[:2]
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    click.echo(f"Oncehook on {base}  (Ctrl-C stops it)")
    handled = {source for name in runtime.handlers.consumers for source in runtime.handlers.handled_by(name).sources}
    paths = {name: f"{name}/TENANT" if source.needs_tenant else name for name, source in runtime.sources.items()}
    width = max(map(len, paths.values()), default=0)
    for name, source in sorted(runtime.sources.items()):
        unsigned = "   ! accepts unsigned deliveries" if not source.is_verified else ""
        unconfirmed = "   ! unconfirmed signature scheme" if source.provider.support == "unconfirmed" else ""
        waits = "   ! waits for its secret" if source.waits_for_secret else ""
        title = source.provider.title or source.provider_name
        is_handled = name in handled or not runtime.has_worker
        unhandled = "" if is_handled else NO_HANDLER
        forwarding = _forwarding(source.settings)
        notes = f"{forwarding}{unsigned}{unconfirmed}{waits}{unhandled}"
        click.echo(f"  {base}/webhooks/{paths[name]:<{width}}   {title}{notes}")
    _announce_consumers(runtime)
    if unused := unused_settings(runtime):
        click.echo(f"  ! {unused}")
    if not runtime.sources:
        click.echo("  no sources yet: `oncehook init PROVIDER` writes a configuration with one")
    if token is not None:
        click.echo(f"  {base}/?token={token}   dashboard; the token is valid until the server stops")
    sys.stdout.flush()


def _announce_consumers(runtime: Runtime) -> None:
    """Print each consumer of any process with the sources that it subscribes to."""
    sources: dict[str, list[str]] = {}
    for row in runtime.consumers.stored:
        sources.setdefault(row.name, []).append(row.source)
    width = max(map(len, sources), default=0)
    for name, subscribed in sorted(sources.items()):
        is_here = name in runtime.handlers.consumers or not runtime.has_worker
        notes = f"{_forwarding(runtime.consumers.settings.get(name))}{'' if is_here else NO_HANDLER}"
        click.echo(f"  consumer {name:<{width}}   {', '.join(sorted(subscribed))}{notes}")


def _forwarding(settings: SourceSettings | ConsumerSettings | None) -> str:
    if settings is None or settings.forward is None:
        return ""
    signed = "" if settings.forward_secret else ", unsigned"
    return f"   → {forward_origin(settings.forward)}{signed}"


class Server(uvicorn.Server):
    """uvicorn with our signal handlers. Its own raise SIGTERM again after the drain, so the exit code is not 0."""

    dashboard: "Dashboard | None" = None

    def __init__(self, config: uvicorn.Config, runtime: Runtime) -> None:
        super().__init__(config)
        self.runtime = runtime
        self.second_signal = asyncio.Event()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain: end the dashboard's streams, then give deliveries, handlers and effects one shared grace period."""
        await self.leave_load_balancer()
        if self.dashboard is not None:
            self.dashboard.close()
        await asyncio.gather(super().shutdown(sockets), self.runtime.stop_work())
        if self.dashboard is not None:
            await self.dashboard.stop()

    async def leave_load_balancer(self) -> None:
        """Respond 503 at /readyz, and accept deliveries for `drain_delay`. Each connection closes after its response.

        A second SIGINT ends the delay.
        """
        self.runtime.readiness.drain()
        self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]
        delay = self.runtime.settings.drain_delay
        if delay and not self.force_exit:
            signals.emit("draining", seconds=delay)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.second_signal.wait(), delay)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        if self.force_exit:
            self.second_signal.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop_on_signals(self) -> None:
        """Make SIGINT and SIGTERM drain and stop this server, even while it is still starting."""
        settings = self.runtime.settings
        stop_on_signals(lambda number: self.handle_exit(number, None), settings.drain_delay + settings.stop_grace)


def max_connections() -> int | None:
    """The limit of file descriptors, less 64 for the database and files. Connections above it get 503."""
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
    """A uvicorn server tuned for the receiver: no proxy headers, no access log, no avoidable work per request."""
    server = Server(
        uvicorn.Config(
            Service(inbox, dashboard),
            http=protocol or (FastProtocol if inbox._runtime.settings.fast_paths else LimitedProtocol),
            ws="none",  # nothing here is a WebSocket, whatever library is installed
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            limit_concurrency=max_connections(),
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
    """Run until SIGTERM or SIGINT, then drain. The addresses are printed once deliveries can be accepted."""

    async def run() -> None:
        runtime = inbox._runtime
        protocol = await choose_protocol(fast=runtime.settings.fast_paths)
        server = make_server(inbox, dashboard, protocol)
        server.stop_on_signals()
        if not announced:  # a child process: standard input is a pipe that closes when the parent ends
            asyncio.get_running_loop().add_reader(0, server.handle_exit, signal.SIGTERM, None)
        runtime.is_mounted = False  # the dashboard, if any, is served here
        async with inbox.lifespan():
            if announced:
                announce(runtime, listener, dashboard.access.run_token if dashboard else None)
            gc.collect()
            gc.freeze()  # objects from start-up live on; the collector need not scan them again
            gc.set_threshold(50_000, 20, 50)
            if runtime.store.dialect.single_writer:
                # The writer thread needs the GIL after each statement, and by default waits up to 5 ms for it.
                sys.setswitchinterval(0.0005)
            unfinished = close_unfinished(server.server_state.connections, runtime.settings.receive_timeout)
            background = [asyncio.create_task(unfinished), asyncio.create_task(metrics.write_periodically())]
            try:
                await server.serve(sockets=[listener])
            finally:
                for task in background:
                    task.cancel()
                await asyncio.wait(background)

    try:
        import uvloop
    except ModuleNotFoundError:  # Windows
        asyncio.run(run())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
