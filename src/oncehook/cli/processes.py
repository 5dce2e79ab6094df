"""Several server processes on one listening socket, and the parent that restarts them."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import click

from oncehook.cli.app import program_command
from oncehook.observability.metrics import FOLDER

START_PERIOD = 10.0
"""Seconds in which a child that exits with an error stops the parent. Later, the parent restarts any child."""


def run_processes(
    count: int, listener: socket.socket, app: str, options: list[str], *, token: str | None = None
) -> int:
    """Start `count` children, restart each one that dies, and pass SIGTERM on. Returns the exit code."""
    listener.set_inheritable(True)
    command = [*program_command(), "serve", app, "--fd", str(listener.fileno()), *options]
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    with tempfile.TemporaryDirectory(prefix="oncehook-metrics-") as folder:
        os.environ[FOLDER] = folder
        return _supervise(count, command, listener, stopping, token)


def _supervise(
    count: int, command: list[str], listener: socket.socket, stopping: threading.Event, token: str | None
) -> int:
    children = [_start(command, listener) for _ in range(count)]
    host, port = listener.getsockname()[:2]
    click.echo(f"Oncehook on http://{host}:{port} in {count} processes  (Ctrl-C stops them)")
    if token is not None:
        click.echo(f"  http://{host}:{port}/?token={token}   dashboard; the token is valid until the processes stop")
    sys.stdout.flush()
    code, started = 0, time.monotonic()
    while not stopping.wait(0.5) and code == 0:
        for i, child in enumerate(children):
            exit_code = child.poll()
            if exit_code in (1, 2) and time.monotonic() - started < START_PERIOD:
                code = exit_code  # the child printed the reason, and a restart would fail too
            elif exit_code is not None:
                children[i] = _start(command, listener)
    for child in children:
        child.send_signal(signal.SIGTERM)
    for child in children:
        child.communicate()
    return code


def _start(command: list[str], listener: socket.socket) -> subprocess.Popen[bytes]:
    """Start a child with our socket. Its standard input is a pipe that closes when we end, which stops the child."""
    return subprocess.Popen(  # noqa: S603  # the command is not user input
        command, pass_fds=(listener.fileno(),), stdin=subprocess.PIPE, env=os.environ, process_group=0
    )
