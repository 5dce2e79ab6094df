"""Waiting for a condition instead of for a time. Tests never sleep themselves.

`eventually` checks its condition again as soon as the code under test reaches a checkpoint (a receipt was settled, the
worker found nothing to do), so it returns in the moment in which the condition holds. The checks in between are for
conditions that another process fulfils.
"""

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable

from tests.support.signals import SIGNALS

INTERVAL = 0.02
"""Seconds between two checks while no checkpoint is reached."""

SLOW_STATEMENT = "SELECT pg_sleep(60)"
"""A statement that PostgreSQL runs for a minute, unless it is cancelled."""

Condition = Callable[[], object | Awaitable[object]]


async def eventually(condition: Condition, expected: str = "the condition holds", *, within: float = 30.0) -> None:
    """Wait until the condition is true. Fails with the sentence `expected` after `within` seconds."""
    deadline = time.monotonic() + within
    while not await _is_true(condition):
        assert time.monotonic() < deadline, f"expected within {within:g} s: {expected}"
        await SIGNALS.next(INTERVAL)


async def _is_true(condition: Condition) -> bool:
    value = condition()
    return bool(await value if isawaitable(value) else value)


def wait_until(
    condition: Callable[[], object],
    expected: str = "the condition holds",
    *,
    within: float = 30.0,
    ignore: tuple[type[Exception], ...] = (),
) -> None:
    """Like `eventually`, for tests without an event loop. A check that raises one of `ignore` counts as false."""
    deadline = time.monotonic() + within
    while not _is_true_now(condition, ignore):
        assert time.monotonic() < deadline, f"expected within {within:g} s: {expected}"
        time.sleep(INTERVAL)


def _is_true_now(condition: Callable[[], object], ignore: tuple[type[Exception], ...]) -> bool:
    try:
        return bool(condition())
    except ignore:
        return False


async def next_turn() -> None:
    """Let every task that is ready run once."""
    await asyncio.sleep(0)


async def stays_true(condition: Callable[[], object], expected: str, *, seconds: float = 0.2) -> None:
    """Fail with the sentence `expected` if the condition becomes false within this time. For what must not happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert condition(), f"expected for {seconds:g} s: {expected}"
        await SIGNALS.next(INTERVAL)


async def let_time_pass(seconds: float) -> None:
    """Keep a run under load for this long. For soak runs and senders at a rate, never for luck."""
    await asyncio.sleep(seconds)


async def pause_at_random(chance: random.Random, most: float) -> None:
    """Wait for up to `most` seconds, so that a kill hits anywhere between two steps."""
    await asyncio.sleep(chance.random() * most)


def wait_until_stopped(process: int) -> None:
    """Wait until SIGSTOP has stopped every thread of a child process."""
    os.waitid(os.P_PID, process, os.WSTOPPED | os.WNOWAIT)


async def hang() -> None:
    """Never return, as a handler that waits for a dead service."""
    await asyncio.Event().wait()


def block_thread(seconds: float) -> None:
    """Block the calling thread, and with it its event loop if it runs one."""
    time.sleep(seconds)
