"""Consumers, as shown to people: their sources, processes and work; and their removal."""

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from oncehook.model.errors import ConfigurationError
from oncehook.model.event import MAIN
from oncehook.model.nearest import hint
from oncehook.model.rows import Pause
from oncehook.model.timestamps import rfc3339
from oncehook.model.values import as_rate
from oncehook.operations.work import read_work
from oncehook.store.store import Store

MAX_COUNTED = 100_000
"""Receipts that are counted at most."""

BATCH = 500
"""Receipts per transaction of a removal."""

KNOWN_AFTER = 3.0
"""Seconds after a change of the consumers in which every process knows it. They query the settings once a second."""

RETRY_SECONDS = 0.2

IDLE_AFTER = 300.0
"""Seconds after which a consumer with work should have a live process again. A deployment takes less."""


@dataclass(slots=True)
class ConsumerSummary:
    """A consumer with its subscriptions, the live processes that have its handlers, and its work."""

    name: str
    patterns: dict[str, list[str]] = field(default_factory=dict)  # by source
    settings: dict[str, Any] = field(default_factory=dict)
    processes: list[str] = field(default_factory=list)
    waiting: int = 0
    dead_letters: int = 0
    oldest_seconds: float = 0.0  # the age of its oldest unfinished receipt
    paused: Pause | None = None
    seen_at: str | None = None  # when a process last registered it

    @property
    def rate(self) -> str | None:
        """Its rate as in the configuration, such as `50/s`."""
        return as_rate(self.settings["rate"]) if "rate" in self.settings else None

    def as_json(self) -> dict[str, Any]:
        paused = None if self.paused is None else {name: getattr(self.paused, name) for name in PAUSE_KEYS}
        return {
            "consumer": self.name,
            "sources": self.patterns,
            "processes": self.processes,
            "waiting": self.waiting,
            "dead_letters": self.dead_letters,
            "oldest_unfinished_seconds": self.oldest_seconds,
            "paused": paused,
            "rate": self.rate,
            "seen_at": self.seen_at,
        }


PAUSE_KEYS = ("paused_at", "actor", "reason", "ends_at")


async def read_consumers(store: Store) -> list[ConsumerSummary]:
    """Return all consumers: `main`, those that are registered or live, and those that have work or a pause."""
    states = {MAIN: ConsumerSummary(MAIN)}

    def state_of(name: str) -> ConsumerSummary:
        return states.setdefault(name, ConsumerSummary(name))

    for row in await store.consumers.all():
        state = state_of(row.name)
        state.patterns[row.source], state.settings = json.loads(row.patterns), json.loads(row.settings)
        state.seen_at = max(state.seen_at or "", row.seen_at)
    for handler in await store.roster.live_handlers():
        state = state_of(handler.consumer)
        state.processes = sorted({*state.processes, handler.worker})
        if handler.consumer == MAIN:
            state.patterns[handler.source] = sorted({*state.patterns.get(handler.source, ()), handler.pattern})
            state.seen_at = max(state.seen_at or "", handler.seen_at)
    for pause in await store.pauses.active():
        if pause.consumer:
            state_of(pause.consumer).paused = pause
    work, _ = await read_work(store, MAX_COUNTED)
    for name in {*states, *work.named_consumers}:
        state, figures = state_of(name), work.figures(consumer=name)
        state.waiting, state.dead_letters = figures["waiting"] + figures["unhandled"], figures["dead_letters"]
        state.oldest_seconds = figures["oldest_unfinished_seconds"]
    return [states.pop(MAIN), *(states[name] for name in sorted(states))]


async def idle_consumers(store: Store) -> list[ConsumerSummary]:
    """Return the consumers other than `main` with waiting events, no pause, and no process for IDLE_AFTER seconds."""
    latest = rfc3339(await store.operations.now() - timedelta(seconds=IDLE_AFTER)) or ""
    return [
        state
        for state in await read_consumers(store)
        if state.name != MAIN and state.waiting and not state.processes and state.paused is None
        and (state.seen_at or "") < latest
    ]  # fmt: skip


async def check_consumer(store: Store, name: str, known: Iterable[str] = ()) -> None:
    """Raise ConfigurationError for an unknown name. `known` are the consumers of the configuration and the code."""
    names = {*known, *(state.name for state in await read_consumers(store))}
    if name not in names:
        printable_name = name if name.isprintable() else name.encode("unicode_escape").decode()
        raise ConfigurationError(f"there is no consumer {printable_name}: {hint(name, names, 'consumers')}")


async def remove_consumer(store: Store, name: str, *, actor: str, progress: Callable[[int], None] | None = None) -> int:
    """Remove a consumer, and end its unfinished receipts and dead letters as `ignored`. Returns how many.

    Receivers stop writing receipts for it within a second. A removal that was interrupted can be repeated.
    """
    check_removable(name)
    await check_consumer(store, name)
    await store.consumers.remove(name, actor)
    await store.wakeups.notify()
    ended = await _end_receipts(store, name, 0, progress)
    await asyncio.sleep(KNOWN_AFTER)
    ended = await _end_receipts(store, name, ended, progress)
    await store.operations.audit(actor, "remove_consumer", {"consumer": name, "ended": ended})
    return ended


def check_removable(name: str) -> None:
    """Raise ConfigurationError for `main`, whose receipts decide whether an event is new."""
    if name == MAIN:
        raise ConfigurationError("the consumer main cannot be removed: its receipts decide whether an event is new")


async def _end_receipts(store: Store, name: str, ended: int, progress: Callable[[int], None] | None) -> int:
    while True:
        number = await store.consumers.end_receipts(name, f"the consumer {name} was removed", BATCH)
        ended += number
        if progress is not None:
            progress(ended)
        if number == 0:
            if not await store.consumers.open_receipts(name, 1):
                return ended
            await asyncio.sleep(RETRY_SECONDS)  # a worker settles the rest at this moment
