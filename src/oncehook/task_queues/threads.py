"""Threads for clients that block. They live on, because such clients keep a connection in each thread.

A call that does not end in time is abandoned: its thread ends when the call does, and another thread replaces it.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue

from oncehook.model.retry import Postpone

MAX_ABANDONED = 16
"""The number of threads that may hang in a client before further calls are postponed."""

RETRY_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _Call:
    work: Callable[[], object]
    loop: asyncio.AbstractEventLoop
    ended: "asyncio.Future[None]"


Calls = SimpleQueue[_Call | None]
"""The calls of one thread. None ends it."""


class BlockingThreads:
    """Runs blocking calls, one per thread. The caller limits how many run at the same time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._idle: list[Calls] = []
        self._abandoned = 0

    async def run(self, work: Callable[[], object]) -> None:
        """Run `work` in a thread. If this is cancelled, the call is abandoned. Raises Postpone if no thread is free."""
        if self._abandoned >= MAX_ABANDONED:
            raise Postpone(f"{MAX_ABANDONED} earlier calls of {self.name} hang", after=RETRY_SECONDS)
        loop = asyncio.get_running_loop()
        call = _Call(work, loop, loop.create_future())
        calls = self._idle.pop() if self._idle else self._start()
        calls.put(call)
        try:
            await call.ended
        except asyncio.CancelledError:
            if call.ended.cancelled():
                self._abandoned += 1
            raise

    def close(self) -> None:
        """End the idle threads. The next call starts a new one."""
        idle, self._idle = self._idle, []
        for calls in idle:
            calls.put(None)

    def _start(self) -> Calls:
        calls: Calls = SimpleQueue()
        threading.Thread(target=self._serve, args=(calls,), name=f"oncehook-{self.name}", daemon=True).start()
        return calls

    def _serve(self, calls: Calls) -> None:
        while (call := calls.get()) is not None:
            error: Exception | None = None
            try:
                call.work()
            except Exception as raised:
                error = raised
            except BaseException as raised:  # only this call fails, not the process
                error = RuntimeError(f"{type(raised).__name__}: {raised}")
            try:
                call.loop.call_soon_threadsafe(self._finish, calls, call, error)
            except RuntimeError:  # the loop is closed
                return
            del call, error

    def _finish(self, calls: Calls, call: _Call, error: Exception | None) -> None:
        if call.ended.cancelled():
            self._abandoned -= 1
            calls.put(None)
            return
        self._idle.append(calls)
        with suppress(asyncio.InvalidStateError):
            if error is None:
                call.ended.set_result(None)
            else:
                call.ended.set_exception(error)
