"""Answers requests for servers that do not run the inbox's event loop. Each process has its own loop thread.

The inbox starts with the first request of a process, so it runs after every fork of a server such as gunicorn or uWSGI.
"""

import asyncio
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from oncehook.receiver import wsgi
from oncehook.receiver.ack import Response, unavailable_response
from oncehook.receiver.handover import RequestBody
from oncehook.receiver.request import Scope
from oncehook.runtime.loop_thread import LoopThread

if TYPE_CHECKING:
    from oncehook.inbox import Inbox


class Gateway:
    """Runs an inbox in a thread of each process, and answers requests there. Also the WSGI app `inbox.wsgi`."""

    def __init__(self, inbox: "Inbox") -> None:
        self._inbox = inbox
        self._threads: dict[int, LoopThread] = {}  # by process; those of a parent are kept, and never used

    def __call__(self, environ: wsgi.Environ, start_response: wsgi.StartResponse) -> Iterable[bytes]:
        return wsgi.respond(environ, start_response, self.answer)

    def mount(self, app: wsgi.WsgiApp, prefix: str = "/webhooks") -> wsgi.WsgiApp:
        """Return a WSGI app with the inbox below `prefix`, and `app` everywhere else.

        The first request to either of them starts the inbox in its process.

            app = inbox.wsgi.mount(falcon_app)
        """
        return wsgi.Mounted(app, prefix, self, self._start_soon)

    def _start_soon(self) -> None:
        thread = self.thread
        if thread.request_handover is None:
            thread.start_soon()

    def start(self) -> None:
        """Start the inbox in this process, instead of with its first request. Raises what its start raises.

        Call it in a hook that runs after the fork, such as gunicorn's `post_worker_init`. Events that wait are then
        handled before the first request.
        """
        self.thread.start()

    def stop(self) -> None:
        """Stop the inbox in this process: handlers that run get `stop_grace`. Later requests get 503.

        A process that exits normally calls it itself.
        """
        self.thread.stop()

    @property
    def thread(self) -> LoopThread:
        """The loop thread of this process. It may not have started."""
        process = os.getpid()
        thread = self._threads.get(process)
        if thread is None:  # at a fork, another thread of the parent may have held a lock: this needs none
            inherited = list(self._threads.values())
            thread = self._threads.setdefault(process, LoopThread(self._inbox._own_runtime, inherited))
        return thread

    # -- requests -------------------------------------------------------------------------------------------------

    def answer(self, name: str, scope: Scope, body: RequestBody) -> Response | None:
        """Answer a request to the address `name`. Blocks. Returns None if the client disconnected."""
        thread = self.thread
        handover = thread.request_handover or thread.start_for_request()
        return unavailable_response(5) if handover is None else handover.answer(name, scope, body)

    async def answer_async(self, name: str, scope: Scope, body: RequestBody) -> Response | None:
        """Answer a request to the address `name`, for a caller in another event loop. Reading must not block."""
        thread = self.thread
        handover = thread.request_handover or await asyncio.to_thread(thread.start_for_request)
        return unavailable_response(5) if handover is None else await handover.answer_async(name, scope, body)
