"""Optional parts of a running inbox, which the settings ask for, such as a queue or a cache outside the database.

A part is built when the inbox starts, and its client library is imported only then.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from oncehook.concurrency.surroundings import Surrounding, end_surrounding, surround_calls

if TYPE_CHECKING:
    from oncehook.config.settings import Settings
    from oncehook.intake.status import IntakeStatus
    from oncehook.runtime import Runtime
    from oncehook.runtime.shards import Shards


class Part(Protocol):
    """A part that starts after the store is open, and stops before the receiver and the store stop."""

    async def start(self) -> None:
        """Start. Raises ConfigurationError if its settings cannot work."""

    async def stop(self) -> None:
        """Stop. A part that was not started does nothing."""


class SurroundedCalls:
    """Calls user functions within the context managers of frameworks."""

    def __init__(self, surroundings: Iterable[Surrounding]) -> None:
        self._surroundings = tuple(surroundings)

    async def start(self) -> None:
        surround_calls(self._surroundings)

    async def stop(self) -> None:
        end_surrounding(self._surroundings)


def make_parts(runtime: "Runtime") -> list[Part]:
    """Make the parts that the settings of an inbox ask for, in the order in which they start."""
    parts = store_parts(runtime)
    runtime.work_queue = None
    if runtime.shard is not None:
        return parts  # the main runtime has the others
    if runtime.registered.surroundings:
        parts.append(SurroundedCalls(runtime.registered.surroundings.values()))
    if runtime.shards is not None:
        parts.append(runtime.shards)  # it wraps the claims of `main`, as those of each shard are wrapped
    if runtime.settings.spool is not None:
        from oncehook.runtime.spool import SpoolPart

        parts.append(SpoolPart(runtime, runtime.settings.spool))  # around all shards: a move may change the shard
    if runtime.settings.queue != "database":
        from oncehook.runtime.work_queue import WorkQueue

        runtime.work_queue = WorkQueue(runtime)
        parts.append(runtime.work_queue)
    if any(source.settings.intake is not None for source in runtime.sources.values()):
        from oncehook.runtime.intake import Intakes

        parts.append(Intakes(runtime))
    if runtime.settings.read_database is not None:
        from oncehook.runtime.read_replica import ReadReplica

        parts.append(ReadReplica(runtime))
    return parts


def store_parts(runtime: "Runtime") -> list[Part]:
    """Make the parts that each shard has for its own database."""
    parts: list[Part] = []
    if runtime.settings.payload_store is not None:
        from oncehook.runtime.large_payloads import LargePayloads

        parts.append(LargePayloads(runtime))  # the first: it wraps the step that commits
    if has_fast_path(runtime.settings):
        from oncehook.runtime.fast_path import FastPathPart

        parts.append(FastPathPart(runtime))
    return parts


def make_shards(runtime: "Runtime") -> "Shards | None":
    """Make the shards that the configuration lists besides `main`, or None."""
    if not runtime.configuration.shards:
        return None
    from oncehook.runtime.shards import Shards  # only an inbox with shards needs it

    return Shards(runtime)


async def intake_statuses(parts: Sequence[Part]) -> "list[IntakeStatus]":
    """What waits in the queues of the sources. Empty if no source has an intake."""
    from oncehook.runtime.intake import Intakes

    return [status for part in parts if isinstance(part, Intakes) for status in await part.statuses()]


def has_fast_path(settings: "Settings") -> bool:
    """Whether the settings ask for the fast path. If commits may be lost, a remembered receipt proves nothing."""
    return settings.fast_paths and not settings.unsafe_durability and bool(settings.duplicate_cache or settings.redis)


async def start_parts(parts: Sequence[Part]) -> None:
    """Start all parts in order. If one fails, the others stop."""
    try:
        for part in parts:
            await part.start()
    except BaseException:
        await stop_parts(parts)
        raise


async def stop_parts(parts: Sequence[Part]) -> None:
    """Stop all parts, the last one first."""
    for part in reversed(parts):
        await part.stop()
