"""`oncehook demo`: an inbox on a temporary SQLite file, with simulated senders that also retry, duplicate and forge."""

import asyncio
import contextlib
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

import click

from oncehook.cli.demo_screen import LineOutput, LiveScreen
from oncehook.cli.demo_session import DemoSession
from oncehook.cli.options import console, port_option
from oncehook.cli.serve import announce, listen
from oncehook.model.errors import ConfigurationError

HOST = "127.0.0.1"


@click.command("demo")
@port_option
@click.option("--rate", default=20, show_default=True, type=click.IntRange(1, 500), help="New events per second.")
@click.option("--seconds", type=click.IntRange(1), help="Stop after this many seconds.  [default: run until Ctrl-C]")
def command(port: int, rate: int, seconds: int | None) -> None:
    """Run a real inbox on a temporary SQLite file, with realistic traffic.

    Five senders deliver over HTTP. Most events are delivered once. Others are delivered again because an ack was lost,
    several times concurrently, or late. Some deliveries are forged, stale or malformed.

    The demo continuously compares the acked events with the receipts in the database, and exits 1 if they ever
    differ. It deletes its files when it ends.

    \b
    oncehook demo
    oncehook demo --port 8001 --rate 100
    """
    listener = _listen(port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the session installs its handler
    held = True
    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(prefix="oncehook-demo-", ignore_cleanup_errors=True) as folder,
    ):
        session = DemoSession(Path(folder), listener, rate)
        announce(session.inbox._runtime, listener, session.dashboard.access.run_token)
        _print_hints(Path(folder), session.base)
        screen = console()
        is_terminal = sys.stdout.isatty() and not screen.is_dumb_terminal
        held = asyncio.run(session.run(LiveScreen(screen) if is_terminal else LineOutput(), seconds))
    click.echo("The demo has ended, and its files are deleted.")
    sys.exit(0 if held else 1)


def _listen(port: int) -> socket.socket:
    try:
        return listen(HOST, port)
    except ConfigurationError:
        other = port + 1 if port < 65535 else 8001
        raise ConfigurationError(
            f"the demo cannot listen on {HOST}:{port}: the port is in use or not permitted. "
            f"Choose another port with `oncehook demo --port {other}` or `make run PORT={other}`"
        ) from None


def _print_hints(folder: Path, base: str) -> None:
    """Print commands to paste into another terminal."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "oncehook" else "python -m oncehook"
    if program == shutil.which("oncehook"):
        program = "oncehook"
    config = f"--config {folder}/oncehook.toml"
    to = "" if base.endswith(":8000") else f" --to {base}/webhooks/stripe"
    click.echo("In another terminal:")
    click.echo(f"  {program} events {config}")
    click.echo(f"  {program} send stripe invoice.paid {config}{to}")
    click.echo(f"  curl -i {base}/webhooks/stripe -d '{{}}'      # unsigned: rejected")
    click.echo(f"  tail -f {folder}/oncehook.log\n")
    sys.stdout.flush()
