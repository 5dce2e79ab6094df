"""Rehearsals with the handlers of an inbox, on its own store or on one that a command has opened."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from oncehook.model.receipt import Receipt
from oncehook.operations.rehearse import Rehearsal, rehearse
from oncehook.runtime.sessions import make_sessions
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.runtime import Runtime

Rehearsing = Callable[[Receipt], Awaitable[Rehearsal]]


@asynccontextmanager
async def rehearsing(runtime: "Runtime", store: Store) -> AsyncIterator[Rehearsing]:
    """How a receipt's handler is rehearsed: in a transaction of `store`, or in a session on the inbox's engine."""
    begin = partial(rehearse, store, runtime.handlers, effects=runtime.effects, canonical=runtime.canonicals)
    if runtime.sessions is None:
        yield partial(begin, transaction=None)
    elif store is runtime.store:
        yield partial(begin, transaction=runtime.sessions.transaction)
    else:
        sessions = make_sessions(runtime.sessions.engine, store)
        sessions.check_handlers(runtime.handlers)
        await sessions.check_database()
        try:
            yield partial(begin, transaction=sessions.transaction)
        finally:
            await sessions.dispose()
