"""`oncehook worker`: workers without a receiver."""

import asyncio
import sys

import click

from oncehook.cli.app import app_name, app_option, configured_inbox, unused_settings
from oncehook.cli.options import config_option, handlers_option
from oncehook.cli.shutdown import stop_on_signals
from oncehook.model.errors import ConfigurationError
from oncehook.observability import signals
from oncehook.runtime import Runtime


@click.command("worker")
@click.argument("app", required=False)
@config_option
@app_option
@handlers_option
def command(app: str | None, config: str | None, concurrency: int | None) -> None:
    """Run the handlers of APP without receiving deliveries. On PostgreSQL, start as many workers as you need.

    APP is module:inbox, imported with the current directory on the path. The default is `app` in oncehook.toml.

    On SIGTERM the worker leases no more events, lets running handlers finish, releases the receipts it has not started,
    and exits 0.

    \b
    oncehook worker hooks:inbox
    oncehook worker hooks:inbox --concurrency 64
    """
    runtime = configured_inbox(config, app)._runtime
    require_handlers(runtime, app_name(runtime.configuration, app))
    if concurrency is not None:
        runtime.set_concurrency(concurrency)
    runtime.has_worker = True
    signals.configure(runtime.settings.log_level, runtime.settings.log_format)
    work(runtime)


def require_handlers(runtime: Runtime, app: str | None) -> None:
    """Fail if this worker would have nothing to do: it has no handler, and not every source has `email = true`."""
    projecting = runtime.handlers.projecting
    if not any(True for _ in runtime.handlers) and not (projecting and projecting.keys() >= runtime.sources.keys()):
        reason = f"{app} registers no handler" if app else "no app is configured"
        raise ConfigurationError(
            f"the worker has no handlers: {reason}. Pass your app, as in `oncehook worker hooks:inbox`, or "
            f'set app = "hooks:inbox" in oncehook.toml'
        )


def work(runtime: Runtime) -> None:
    """Run until SIGTERM or SIGINT, then drain."""

    async def run() -> None:
        stop = asyncio.Event()
        stop_on_signals(lambda number: stop.set(), runtime.settings.stop_grace)
        runtime.is_mounted = False
        async with runtime.lifespan():
            click.echo(f"Oncehook worker, up to {runtime.settings.concurrency} concurrent handlers  (Ctrl-C stops it)")
            if unused := unused_settings(runtime):
                click.echo(f"  ! {unused}")
            sys.stdout.flush()
            await stop.wait()

    try:
        import uvloop
    except ModuleNotFoundError:  # Windows
        asyncio.run(run())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run())
