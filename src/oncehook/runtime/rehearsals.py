"""Rehearsals with the handlers of an inbox, on its own store or on a store that a command has opened."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from oncehook.concurrency.surroundings import surround_calls
from oncehook.model.receipt import Receipt
from oncehook.operations.rehearse import Rehearsal, rehearse
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.runtime import Runtime

Rehearse = Callable[[Receipt], Awaitable[Rehearsal]]


async def make_rehearse(runtime: "Runtime", store: Store) -> Rehearse:
    """Return a function that rehearses a receipt, in a transaction of `store` or in a session of the inbox's engine."""
    surround_calls(runtime.registered.surroundings.values())  # the inbox may not be running
    begin = partial(rehearse, store, runtime.handlers, effects=runtime.effects, canonical=runtime.canonicals)
    if runtime.sessions is None:
        return partial(begin, transaction=None)
    if store is runtime.store:
        return partial(begin, transaction=runtime.sessions.transaction)
    sessions = runtime.sessions.with_store(store)
    sessions.check_handlers(runtime.handlers)
    await sessions.check_database()
    return partial(begin, transaction=sessions.transaction)
