"""The checks and warnings when an inbox starts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from oncehook.model.errors import ConfigurationError
from oncehook.observability import signals
from oncehook.operations.keys import check_keys
from oncehook.operations.prune import effect_horizon
from oncehook.store import make_store
from oncehook.store.store import Store
from oncehook.store.transaction import django_is_separate

if TYPE_CHECKING:
    from oncehook.runtime import Runtime


def check_configuration(runtime: "Runtime") -> None:
    """Raise ConfigurationError for contradictory settings of retention, and for a task queue that loses tasks."""
    effect_horizon(runtime.settings, runtime.horizons.values())
    if runtime.has_worker:
        for queue in runtime.effects.task_queues.values():
            queue.adapter.check()


def check_sources(runtime: "Runtime") -> None:
    """Raise ConfigurationError for alerts, handlers or retention that contradict the sources.

    The managed sources are known. A handler may be for a managed source that was removed: its events may still wait.
    """
    effect_horizon(runtime.settings, runtime.horizons.values())
    if runtime.configuration.alerts:
        runtime.alerts.check(removed=runtime.managed_sources.rows)
    types_of = {name: source.settings.types for name, source in runtime.sources.items()}
    runtime.handlers.check({**dict.fromkeys(runtime.managed_sources.rows), **types_of})


async def check_encryption(runtime: "Runtime") -> None:
    """Raise ConfigurationError if the key ring lacks a key that a source or a row of the database needs."""
    encrypted = [name for name, source in runtime.sources.items() if source.encrypt is not None]
    if encrypted and not runtime.store.keys:
        raise ConfigurationError(
            f"sources.{encrypted[0]}.encrypt needs a key: `oncehook keys generate` prints one, and says how to set it"
        )
    await check_keys(runtime.store, encrypts=bool(encrypted))


async def check_schema(runtime: "Runtime", store: Store) -> None:
    """Raise ConfigurationError if the schema is out of date and this inbox must not migrate it.

    The database of a shard records which shard it is, or has been this one before.
    """
    if runtime.settings.migrate == "never" and await store.schema.pending():
        command = getattr(runtime.sessions, "migrate_command", "oncehook migrate")
        raise ConfigurationError(f"the database schema is out of date: run `{command}`")
    if runtime.shard is not None and store.shards is not None:
        await store.shards.become(*runtime.shard)


@asynccontextmanager
async def open_store(runtime: "Runtime") -> AsyncIterator[Store]:
    """Open a second store of this inbox for one block, and check its schema. With shards, one over all of them."""
    if runtime.shards is not None:
        from oncehook.store.opening import opened_shards  # only an inbox with shards needs it

        async with opened_shards(runtime.settings, runtime.configuration.shards) as federation:
            yield federation
        return
    store = make_store(runtime.settings)
    await store.open()
    try:
        await check_schema(runtime, store)
        yield store
    finally:
        await store.close()


def log_warnings(runtime: "Runtime") -> None:
    """Warn the operator of unsigned sources, missing secrets and ORM writes outside the transaction."""
    for source in runtime.sources.values():
        if not source.is_verified:
            signals.emit("unverified_source", source=source.name)
        elif source.waits_for_secret:
            signals.emit("secret_missing", source=source.name)
    if django_is_separate() and any(not handler.forwards_to for handler in runtime.handlers):
        signals.emit("django_orm_not_transactional", detail="add oncehook.integrations.django to INSTALLED_APPS")
