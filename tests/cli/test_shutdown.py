"""Stopping on a signal, also while the event loop is blocked."""

import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.system

PROGRAM = """
import asyncio, os, threading
from oncehook.cli import shutdown

shutdown.WATCHDOG_MARGIN = 0.1

async def main():
    stop = asyncio.Event()
    shutdown.stop_on_signals(lambda number: (print(number, flush=True), stop.set()), 0.0)
    os.kill(os.getpid(), {signal})
    {wait}

asyncio.run(main())
"""


def end(number: int, wait: str) -> "subprocess.CompletedProcess[str]":
    """Run a process that sends itself a signal and then waits."""
    program = PROGRAM.replace("{signal}", str(int(number))).replace("{wait}", wait)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_calls_stop_in_the_event_loop(number: signal.Signals) -> None:
    done = end(number, "await stop.wait()")
    assert (done.returncode, done.stdout) == (0, f"{int(number)}\n")


def test_the_watchdog_ends_a_process_whose_loop_is_blocked() -> None:
    done = end(signal.SIGTERM, "threading.Event().wait(20)")
    assert done.returncode == 1 and "stop_forced" in done.stderr
