"""Builds the parts of an inbox again, in a process that was forked while the inbox ran.

A child must not use the connections, threads and tasks of its parent. The parts that have them are kept, because
closing them could affect the parent, and are never used.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from oncehook.model.errors import ConfigurationError
from oncehook.observability.signals import ADDRESSES
from oncehook.runtime import Runtime

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

Addition = Callable[[Runtime], Any]
"""Adds a source or a consumer."""

_inherited: list[Runtime] = []


def rebuild(former: Runtime, additions: Sequence[Addition], engine: "Engine | AsyncEngine | None") -> Runtime:
    """Return a new runtime with the sources, consumers, handlers and effects of a former one.

    Raises ConfigurationError for a database in a file: in the child, SQLite believes that it holds the parent's locks.
    """
    if former.store.dialect.single_writer:
        raise ConfigurationError(
            f"this process was forked while the inbox ran, and {former.store.dialect.title} cannot be used after that: "
            f"start the inbox after the fork, or use PostgreSQL"
        )
    _inherited.append(former)
    if engine is not None:
        getattr(engine, "sync_engine", engine).dispose(close=False)  # as SQLAlchemy requires after a fork
    runtime = Runtime(
        former.configuration,
        former.settings,
        worker=former.has_worker,
        clock=former.clock,
        certificates=former.certificates,
        engine=engine,
    )
    runtime.registered.surroundings.update(former.registered.surroundings)
    runtime.is_mounted = former.is_mounted
    for add in additions:
        add(runtime)
    for name, fetcher in former.canonicals:
        runtime.canonicals.add(name, fetcher)
    for handler in former.handlers:
        if not handler.forwards_to:  # the additions have their own forwards
            runtime.handlers.add(handler)
    for effect in former.effects:
        if effect.kind not in ADDRESSES:  # the new runtime has its own clients
            runtime.effects.add(effect)
    for companion in former.companions:
        runtime.attach(companion)
    return runtime
