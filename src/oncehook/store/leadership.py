"""The leader of each task that one process does for all processes.

A leader is a row with a fencing counter and an end, in the database's time. A process that stalls for longer than its
term loses the leadership: another process takes it, and the first one's next write finds another counter and changes
nothing. On PostgreSQL, the successor ends the session of a leader that stalled in the middle of a transaction. So a
stalled leader blocks its successor for a few seconds at most.
"""

import os
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

from oncehook.model.errors import OncehookError, Unavailable
from oncehook.model.rows import Leader
from oncehook.store.decode import decode
from oncehook.store.executor import Executor, Run


class Leadership(NamedTuple):
    """The right of one process to do a task, until another process takes it."""

    task: str
    leader: str
    number: int


class LeadershipLost(OncehookError):
    """Another process has taken over a task, because this one stalled for longer than its term. It changed nothing."""


async def hold(run: Run, leadership: Leadership, seconds: float = 0.0) -> None:
    """Keep the leadership until the transaction of `run` ends, and extend it to `seconds` from now.

    This is the first statement of a fenced transaction. Raises LeadershipLost if another process is the leader.
    """
    if not await run("hold_leadership", leadership._asdict() | {"seconds": seconds}):
        raise LeadershipLost(f"another process has taken over the task {leadership.task!r}: this one stalled")


class SqlLeadershipStore:
    """Implements `LeadershipStore` on every database."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def take(self, task: str, seconds: float) -> Leadership | None:
        # The name is new each time: after a failover, the counter of the new primary may have gone back.
        leader = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        rows = await self._executor.write("take_leadership", {"task": task, "leader": leader, "seconds": seconds})
        return Leadership(task, leader, rows[0]["number"]) if rows else None

    async def extend(self, leadership: Leadership, seconds: float) -> None:
        await hold(self._executor.write, leadership, seconds)

    async def release(self, leadership: Leadership) -> None:
        await self._executor.write("release_leadership", leadership._asdict())

    @asynccontextmanager
    async def taken(self, task: str, seconds: float) -> AsyncIterator[Leadership | None]:
        leadership = await self.take(task, seconds)
        try:
            yield leadership
        finally:
            if leadership is not None:
                with suppress(Unavailable):  # it ends with its term
                    await self.release(leadership)

    async def leaders(self) -> list[Leader]:
        return decode(await self._executor.read("leaders"), Leader)
