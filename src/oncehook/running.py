"""The operations of an inbox as blocking calls, for scripts, shells and synchronous apps.

with inbox.running() as running:
    replayed = running.replay(source="stripe", status="failed", since="2h")
"""

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from oncehook.inbox import Inbox
from oncehook.model.receipt import Receipt
from oncehook.operations.selection import EventFilter
from oncehook.runtime.loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")

PAGE = 100
"""How many receipts are read at once."""


def _blocking(
    operation: Callable[Concatenate[Inbox, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[RunningInbox, P], T]":
    """Make a method that runs an operation of the inbox in its event loop, and waits for the result."""

    @functools.wraps(operation)
    def run(self: "RunningInbox", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(operation(self.inbox, *args, **kwargs))

    return run


class RunningInbox:
    """An inbox that runs in a thread. Its methods are those of `Inbox`, and block until they have their result."""

    def __init__(self, inbox: Inbox, thread: LoopThread) -> None:
        self.inbox = inbox
        self._thread = thread

    replay = _blocking(Inbox.replay)
    rehearse = _blocking(Inbox.rehearse)
    backfill = _blocking(Inbox.backfill)
    pause = _blocking(Inbox.pause)
    resume = _blocking(Inbox.resume)
    prune = _blocking(Inbox.prune)
    ready = _blocking(Inbox.ready)
    metrics = _blocking(Inbox.metrics)

    def events(self, *, limit: int | None = None, **filters: Unpack[EventFilter]) -> Iterator[Receipt]:
        """Yield the receipts of the events that match, newest first, as `Inbox.events` does."""
        stream = self.inbox.events(limit=limit, **filters)
        while page := self.run(_read_page(stream)):
            yield from page

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run any coroutine in the event loop of the inbox, such as `inbox.email.status("<message id>")`."""
        return self._thread.run(coroutine)


async def _read_page(stream: AsyncIterator[Receipt]) -> list[Receipt]:
    page: list[Receipt] = []
    async for receipt in stream:
        page.append(receipt)
        if len(page) == PAGE:
            break
    return page
