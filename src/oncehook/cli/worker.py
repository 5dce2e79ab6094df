"""`oncehook worker`: the work, without the door."""

import asyncio
import sys

import click

from oncehook.cli.app import app_name, app_option, configured_inbox
from oncehook.cli.options import config_option
from oncehook.cli.shutdown import stop_on_signals
from oncehook.model.errors import ConfigurationError
from oncehook.observability import signals
from oncehook.runtime import Runtime


@click.command("worker")
@click.argument("app", required=False)
@config_option
@app_option
@click.option("--concurrency", type=click.IntRange(1, 1000), help="How many handlers run at once.  [default: settings]")
def command(app: str | None, config: str | None, concurrency: int | None) -> None:
    """Handle accepted events with the handlers of APP, and receive none. Start as many as you need, on PostgreSQL.

    APP is module:inbox, looked up with the current directory on the path; by default it is `app` in oncehook.toml. On
    SIGTERM it leases no more, lets running
    handlers finish, gives back what was not started, and exits 0.

    \b
    oncehook worker hooks:inbox
    oncehook worker hooks:inbox --concurrency 64
    """
    runtime = configured_inbox(config, app)._runtime
    require_handlers(runtime, app_name(runtime.configuration, app))
    if concurrency is not None:
        runtime.set_concurrency(concurrency)
    runtime.works = True
    signals.configure(runtime.settings.log_level, runtime.settings.log_format)
    work(runtime)


def require_handlers(runtime: Runtime, app: str | None) -> None:
    """Without a handler, a worker would have nothing to do.

    Where every source has `email = true`, there is work without any.
    """
    projecting = runtime.handlers.projecting
    if not any(True for _ in runtime.handlers) and not (projecting and projecting.keys() >= runtime.sources.keys()):
        where = f"{app} registers none" if app else "no APP was given"
        raise ConfigurationError(
            f"there are no handlers to work with: {where}. Name yours: oncehook worker hooks:inbox, or "
            f'app = "hooks:inbox" in oncehook.toml'
        )


def work(runtime: Runtime) -> None:
    """Run until SIGTERM or SIGINT, then finish what is under way."""

    async def run() -> None:
        stop = asyncio.Event()
        stop_on_signals(lambda number: stop.set(), runtime.settings.stop_grace)
        runtime.is_mounted = False
        async with runtime.lifespan():
            click.echo(f"Oncehook worker, {runtime.settings.concurrency} at once  (Ctrl-C stops it)")
            sys.stdout.flush()
            await stop.wait()

    try:
        import uvloop
    except ModuleNotFoundError:  # Windows
        asyncio.run(run())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
