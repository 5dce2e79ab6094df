"""Stop cleanly on SIGTERM and SIGINT, with a watchdog that ends a process that does not stop."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from oncehook.observability import signals

WATCHDOG_MARGIN = 12.0
"""Seconds after `stop_grace` until the watchdog ends a process that has not stopped."""


def stop_on_signals(stop: Callable[[int], object], grace: float) -> None:
    """Call `stop` in the running loop for each SIGINT and SIGTERM, and end the process if it does not stop in time.

    These are plain signal handlers, not the event loop's, so that they also run while a handler blocks the loop.
    """
    loop = asyncio.get_running_loop()

    def on_signal(number: int, frame: Any) -> None:
        _start_watchdog(grace + WATCHDOG_MARGIN)
        with suppress(RuntimeError):  # the loop is closed, so the process has stopped
            loop.call_soon_threadsafe(stop, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


_watchdog_started = threading.Event()


def _start_watchdog(seconds: float) -> None:
    if not _watchdog_started.is_set():
        _watchdog_started.set()
        watchdog = threading.Timer(seconds, _exit_now)
        watchdog.daemon = True
        watchdog.start()


def _exit_now() -> None:
    signals.emit("stop_forced")
    os._exit(1)
