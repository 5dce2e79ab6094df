"""SIGTERM and SIGINT of a process with an event loop: it stops cleanly, and ends in any case."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from oncehook.observability import signals

LATE = 12.0
"""Seconds beyond `stop_grace` after which a process that did not stop is ended."""


def end_on_signals(stop: Callable[[int], object], grace: float) -> None:
    """Call `stop` in the running loop for each SIGINT and SIGTERM, and end the process if it does not stop in time.

    These are plain signal handlers and not the loop's: they run while a handler blocks the loop, too.
    """
    loop = asyncio.get_running_loop()

    def on_signal(number: int, frame: Any) -> None:
        _watch(grace + LATE)
        with suppress(RuntimeError):  # the loop is closed: it has stopped already
            loop.call_soon_threadsafe(stop, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


_watching = threading.Event()


def _watch(seconds: float) -> None:
    if not _watching.is_set():
        _watching.set()
        watchdog = threading.Timer(seconds, _end)
        watchdog.daemon = True
        watchdog.start()


def _end() -> None:
    signals.emit("stop_forced")
    os._exit(1)
