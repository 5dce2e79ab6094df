"""A thread with an event loop in which an inbox runs, for processes that have none: WSGI apps and scripts.

The thread belongs to one process. It stops the inbox before the process exits.
"""

import asyncio
import atexit
import os
import selectors
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import thread as _thread_pools  # noqa: F401  # it registers its exit before ours
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from oncehook.concurrency.clock import SYSTEM
from oncehook.model.errors import ConfigurationError, OncehookError, StoreUnavailable
from oncehook.observability import signals
from oncehook.receiver.handover import Handover

if TYPE_CHECKING:
    from oncehook.runtime import Runtime

T = TypeVar("T")


RETRY_SECONDS = 5.0
"""After a start that failed, requests get 503 for this time. The next one after it starts the inbox again."""

START_SECONDS = 5.0
"""How long a request waits for a start by another request. The threads of a server must not all wait for a database."""

_running: "set[LoopThread]" = set()  # of this process, and of a parent at a fork


class LoopThread:
    """Runs an inbox in a thread, from `start` to `stop`. It can be started again."""

    def __init__(self, make_runtime: "Callable[[], Runtime]", inherited: "Sequence[LoopThread]" = ()) -> None:
        self._make_runtime = make_runtime
        self._inherited = inherited  # of the process that was forked
        self.handover: Handover | None = None  # while the inbox runs
        self.process = os.getpid()
        self._transition = threading.Lock()
        self._thread: threading.Thread | None = None
        self._selector: selectors.BaseSelector | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._is_stopped = self._is_starting = False
        self._is_for_requests = False  # a server uses it, until the process exits
        self._blocks = 0  # that hold it
        self._has_other_worker = False  # a block started it with or without a worker, against the settings
        self._failed_at = float("-inf")

    def start(self) -> Handover:
        """Start the inbox, unless it runs already. Raises what its start raises."""
        with self._transition:
            self._is_stopped, self._is_for_requests = False, True
            return self._start()

    @property
    def request_handover(self) -> Handover | None:
        """The way for requests, if the inbox runs for them and not only for a block."""
        return self.handover if self._is_for_requests else None

    def start_for_request(self) -> Handover | None:
        """Start the inbox, unless it runs already. Returns None if it was stopped, or cannot start now."""
        if not self._may_start() or not self._transition.acquire(timeout=START_SECONDS):
            return None  # another thread waits for a database that does not respond
        try:
            if not self._may_start():
                return None
            self._is_for_requests = True
            return self._try_to_start()
        finally:
            self._transition.release()

    def _try_to_start(self) -> Handover | None:
        try:
            return self._start()
        except Exception as error:
            self._failed_at = SYSTEM.monotonic()
            signals.emit("start_failed", detail=str(error) if isinstance(error, OncehookError) else repr(error))
            return None

    @contextmanager
    def held(self, *, worker: bool | None = None) -> "Iterator[LoopThread]":
        """Run the inbox at least for one block: with or without a worker, if nothing else has started it."""
        with self._transition:
            self._start(worker)
            self._blocks += 1
        try:
            yield self
        finally:
            with self._transition:
                self._blocks -= 1
                if not self._blocks:
                    self._release()

    def _release(self) -> None:
        """After the last block: stop, or go on for requests with the worker that the settings ask for."""
        if self._is_for_requests and not self._has_other_worker:
            return
        self.handover = None
        self._end()
        if self._is_for_requests:
            self._try_to_start()

    def _may_start(self) -> bool:
        return not self._is_stopped and SYSTEM.monotonic() >= self._failed_at + RETRY_SECONDS

    def start_soon(self) -> None:
        """Start the inbox in the background, unless a start is under way. Returns immediately."""
        if self._may_start() and not self._is_starting and not self._transition.locked():
            self._is_starting = True
            threading.Thread(target=self._start_in_background, name="oncehook-start", daemon=True).start()

    def _start_in_background(self) -> None:
        try:
            self.start_for_request()
        finally:
            self._is_starting = False

    def stop(self) -> None:
        """Stop the inbox: requests and handlers that run get `stop_grace`. Does nothing if it does not run."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("the event loop of the inbox cannot wait for its own end: stop it from another thread")
        self._is_stopped = True  # requests do not wait for the end
        with self._transition:
            self._is_stopped, self._is_for_requests, self.handover = True, False, None
            self._end()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the event loop of the inbox, and return its result."""
        loop = self._loop
        if self.handover is None or loop is None or threading.current_thread() is self._thread:
            coroutine.close()
            if loop is not None and self.handover is not None:
                raise RuntimeError("this code runs in the event loop of the inbox: await the operation instead")
            raise StoreUnavailable("the inbox does not run: use it within `with inbox.running()`")
        running = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return running.result()
        except BaseException:  # Ctrl-C ends the operation too
            running.cancel()
            raise

    def _start(self, worker: bool | None = None) -> Handover:
        if self.handover is not None:
            return self.handover
        check_threads()
        for former in self._inherited:
            former.disconnect()
        runtime = self._make_runtime()
        if runtime.is_running:
            raise ConfigurationError(
                "the inbox already runs in another event loop of this process: use it there, or stop it first"
            )
        self._has_other_worker = worker is not None and worker != runtime.has_worker
        started: Future[Handover] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(runtime, worker, started), name="oncehook-loop", daemon=True
        )
        self._thread.start()
        try:
            self.handover = started.result()
        except BaseException:
            self._end()
            raise
        _running.add(self)
        return self.handover

    def _end(self) -> None:
        _running.discard(self)
        loop, stopping, thread = self._loop, self._stopping, self._thread
        if loop is not None and stopping is not None:
            with suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(stopping.set)
        if thread is not None:
            thread.join()
        self._loop = self._stopping = self._thread = None

    def disconnect(self) -> None:
        """Close the connections of an inherited loop in this process only. Those of the parent stay open.

        Their numbers then stand for the null device: the objects that have them can be deleted without an effect.
        """
        selector, self._selector = self._selector, None
        numbers = [] if selector is None else [key.fd for key in (selector.get_map() or {}).values()]
        if hasattr(selectors, "EpollSelector") and isinstance(selector, selectors.EpollSelector):
            numbers.append(selector.fileno())  # parent and child share it
        with Path(os.devnull).open("r+b", buffering=0) as null:
            for number in numbers:
                os.dup2(null.fileno(), number)

    # -- in the thread --------------------------------------------------------------------------------------------

    def _run(self, runtime: "Runtime", worker: bool | None, started: "Future[Handover]") -> None:
        configured = runtime.has_worker
        runtime.has_worker = configured if worker is None else worker
        try:
            with asyncio.Runner(loop_factory=self._make_loop) as runner:
                runner.run(self._serve(runtime, started))
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            elif isinstance(error, Exception):
                signals.log_background_failure("loop thread", error)
        finally:
            runtime.has_worker = configured

    def _make_loop(self) -> asyncio.AbstractEventLoop:
        self._selector = selectors.DefaultSelector()
        return asyncio.SelectorEventLoop(self._selector)

    async def _serve(self, runtime: "Runtime", started: "Future[Handover]") -> None:
        settings = runtime.settings
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with runtime.lifespan():
            handover = Handover(
                runtime.reception.asgi, self._loop, limit=settings.intake_limit, patience=settings.claim_timeout
            )
            handover.start()
            started.set_result(handover)
            await self._stopping.wait()
            await handover.close(settings.stop_grace)


def _stop_all() -> None:
    """Stop the inboxes of this process. The threads of a parent do not exist here."""
    for thread in list(_running):
        if thread.process == os.getpid():
            thread.stop()


# `atexit` calls too late: the thread pools of Python accept no more work then, and closing a store needs them.
# Functions that are registered here run in reverse order, so this one runs before that of the thread pools.
with suppress(RuntimeError):  # the interpreter is exiting
    getattr(threading, "_register_atexit", atexit.register)(_stop_all)


def check_threads() -> None:
    """Raise ConfigurationError if this process has no real threads in which an event loop can run."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if (gevent is not None and gevent.is_module_patched("threading")) or (
        eventlet is not None and eventlet.is_monkey_patched("thread")
    ):
        raise ConfigurationError(
            "gevent or eventlet has replaced the threads of this process, and an inbox needs real ones: use threads "
            "in your server, such as `gunicorn --worker-class gthread`, or run `oncehook serve` as a second service"
        )
    uwsgi: Any = sys.modules.get("uwsgi")
    if uwsgi is not None and not {"enable-threads", "threads"} & {_text(name) for name in uwsgi.opt}:
        raise ConfigurationError(
            "uWSGI needs `enable-threads = true`: without it, the event loop of the inbox stands still between requests"
        )


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("latin-1")
