"""Pauses and resumes a source or a consumer. Its events are accepted and wait, in every process and across restarts."""

from collections.abc import Iterable

from oncehook.model.errors import ConfigurationError
from oncehook.operations.consumers import check_consumer
from oncehook.operations.replay import whoami
from oncehook.store.store import Store


async def pause(
    store: Store,
    source: str = "",
    *,
    consumer: str = "",
    known: Iterable[str],
    actor: str | None = None,
    reason: str | None = None,
    seconds: float | None = None,
) -> bool:
    """Pause a source or a consumer for `seconds`, or until it is resumed. Returns False if it was already paused.

    `known` are the names of the configuration and the code: of sources, or of consumers.
    """
    await check_name(store, source, consumer, known)
    changed = await store.pauses.pause(source, actor or whoami(), consumer=consumer, reason=reason, seconds=seconds)
    await store.wakeups.notify()
    return changed


async def resume(
    store: Store, source: str = "", *, consumer: str = "", known: Iterable[str], actor: str | None = None
) -> bool:
    """Resume a source or a consumer. Returns False if it was not paused."""
    await check_name(store, source, consumer, known)
    changed = await store.pauses.resume(source, actor or whoami(), consumer=consumer)
    await store.wakeups.notify()
    return changed


async def check_name(store: Store, source: str, consumer: str, known: Iterable[str]) -> None:
    """Raise ValueError unless one of both is passed, and ConfigurationError for an unknown name."""
    if bool(source) == bool(consumer):
        raise ValueError("pass either a source or a consumer")
    if consumer:
        await check_consumer(store, consumer, known)
    else:
        await check_source(store, source, known)


async def check_source(store: Store, source: str, known: Iterable[str]) -> None:
    """Raise ConfigurationError for an unknown name. `known` are the configured sources."""
    names = {*known, *await store.receipts.sources()}
    names |= {row.source for row in await store.pauses.active() if row.source}
    names |= {row.name for row in await store.directory.sources()}
    if source not in names:
        printable_name = source if source.isprintable() else source.encode("unicode_escape").decode()
        message = f"there is no source {printable_name}; the sources are {', '.join(sorted(names)) or 'none'}"
        raise ConfigurationError(f"{message}. For a source that is defined in code, pass --app module:inbox")
