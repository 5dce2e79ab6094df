"""`oncehook demo`: a tour on a temporary SQLite file, with senders that behave as senders do."""

import asyncio
import contextlib
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

import click

from oncehook.cli.board import Board, Lines
from oncehook.cli.options import console
from oncehook.cli.serve import announce, listen
from oncehook.cli.tour import Tour
from oncehook.model.errors import ConfigurationError

HOST = "127.0.0.1"


@click.command("demo")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 picks a free one.")
@click.option("--rate", default=20, show_default=True, type=click.IntRange(1, 500), help="New events a second, about.")
@click.option("--seconds", type=click.IntRange(1), help="How long to run.  [default: when you press Ctrl-C]")
def command(port: int, rate: int, seconds: int | None) -> None:
    """Take a tour: a real inbox on a temporary SQLite file, and traffic as senders make it.

    Five senders deliver over HTTP. Most events come once; some come again because an answer was lost, some several
    times at once, some late; some deliveries are forged, stale or malformed. The table compares what the door acked
    with the receipts in the database, again and again. Exits 1 if they ever differ. Nothing is left behind.

    \b
    oncehook demo
    oncehook demo --port 8001 --rate 100
    """
    listener = _listen(port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # until the tour has a handler of its own
    held = True
    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory(prefix="oncehook-demo-", ignore_cleanup_errors=True) as folder,
    ):
        tour = Tour(Path(folder), listener, rate)
        announce(tour.inbox._runtime, listener, tour.dashboard.access.run_token)
        _hint(Path(folder), tour.base)
        screen = console()
        view = Board(screen) if sys.stdout.isatty() and not screen.is_dumb_terminal else Lines()
        held = asyncio.run(tour.run(view, seconds))
    click.echo("The demo is over, and its files are removed.")
    sys.exit(0 if held else 1)


def _listen(port: int) -> socket.socket:
    try:
        return listen(HOST, port)
    except ConfigurationError:
        other = port + 1 if port < 65535 else 8001
        raise ConfigurationError(
            f"the demo cannot listen on {HOST}:{port}, which is taken or not allowed: "
            f"choose another port with `oncehook demo --port {other}` or `make run PORT={other}`"
        ) from None


def _hint(folder: Path, base: str) -> None:
    """What to try in another terminal, ready to be pasted."""
    program = sys.argv[0] if Path(sys.argv[0]).name == "oncehook" else "python -m oncehook"
    if program == shutil.which("oncehook"):
        program = "oncehook"
    config = f"--config {folder}/oncehook.toml"
    to = "" if base.endswith(":8000") else f" --to {base}/webhooks/stripe"
    click.echo("In another terminal:")
    click.echo(f"  {program} events {config}")
    click.echo(f"  {program} send stripe invoice.paid {config}{to}")
    click.echo(f"  curl -i {base}/webhooks/stripe -d '{{}}'      # not signed: refused")
    click.echo(f"  tail -f {folder}/oncehook.log\n")
    sys.stdout.flush()
