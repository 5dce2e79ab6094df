"""Deletes old data: receipts after their dedupe window, payloads after their retention.

Only finished receipts (`processed` or `ignored`) are deleted. Unfinished events and dead letters stay, however old
they are. The receipts of an event are deleted together, when every consumer has finished it. While a receipt exists,
another delivery of its event is a duplicate; afterwards it would be a new event. The window of a source is therefore
always longer than its provider retries.

Rows are deleted in short transactions with pauses between them, so that the receiver does not wait. A step that is
interrupted is repeated by the next run.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.settings import Default, Horizon, Settings, SourceSettings
from oncehook.model.errors import ConfigurationError, Unavailable
from oncehook.model.values import as_duration
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.operations.payload_objects import collect_objects
from oncehook.providers.definition import Provider
from oncehook.store.leadership import LeadershipLost
from oncehook.store.operator_protocols import Pruning
from oncehook.store.retention import PRUNE
from oncehook.store.rows import Cutoffs, PruneCursor
from oncehook.store.store import Store

MARGIN = 5 * 86400.0
"""Seconds that a receipt must outlive the last retry of its provider."""

WHOLE_DAYS = 2 * 86400.0
"""From this length on, retention ends with a UTC day, so that a whole day of payloads is dropped. Shorter is exact."""

BATCH = 500
"""Rows per transaction."""

EVERY = 3600.0
"""Seconds between two runs."""

FIRST = 60.0
"""Seconds from the start of a process to its first run."""

NEXT_TRY = 60.0
"""Seconds until a process tries again if another process is pruning."""

FULL_SCAN_EVERY = 24
"""The number of runs after which all payloads are scanned again, to find old dead letters that were replayed."""


def horizon(name: str, source: SourceSettings, provider: Provider, settings: Settings) -> Horizon:
    """Return the retention of a source. Raises ConfigurationError if its configured window is too short."""
    needed = (provider.horizon or 0.0) + MARGIN
    window = settings.dedupe_window if source.dedupe_window is None else source.dedupe_window
    if window < needed and not isinstance(window, Default):
        where = "dedupe_window" if source.dedupe_window is None else f"sources.{name}.dedupe_window"
        raise ConfigurationError(
            f"{where} is {as_duration(window)}: {provider.title or provider.name} may retry an event of sources.{name} "
            f"after that, and it would be handled twice; the minimum is {as_duration(needed)}"
        )
    window = max(float(window), needed)
    retention = settings.payload_retention if source.payload_retention is None else source.payload_retention
    return Horizon(name, window, min(float(retention), window))


def effect_horizon(settings: Settings, horizons: Iterable[Horizon]) -> float | None:
    """Return how long the keys of effects stay, or None if they are never deleted. They must outlive every receipt.

    Raises ConfigurationError if `effect_retention` is shorter than that.
    """
    retention = settings.effect_retention
    longest = max([settings.dedupe_window, *(horizon.receipts for horizon in horizons)])
    if retention is not None and retention < longest:
        raise ConfigurationError(
            f"effect_retention is {as_duration(retention)}: an event that is stored for longer could request its "
            f"effect again, and it would run twice; the minimum is {as_duration(longest)}, or leave it out"
        )
    return retention


def cutoffs(horizons: Iterable[Horizon], now: datetime) -> tuple[dict[str, datetime], dict[str, datetime]]:
    """Return per source the times before which receipts and payloads are deleted."""
    horizons = list(horizons)
    return (
        {horizon.source: _cutoff(now, horizon.receipts) for horizon in horizons},
        {horizon.source: _cutoff(now, horizon.payloads) for horizon in horizons},
    )


def _cutoff(now: datetime, seconds: float) -> datetime:
    try:
        time = now.astimezone(UTC) - timedelta(seconds=seconds)
    except OverflowError:  # retention without an end
        return datetime(1970, 1, 1, tzinfo=UTC)
    return time.replace(hour=0, minute=0, second=0, microsecond=0) if seconds >= WHOLE_DAYS else time


@dataclass
class Pruned:
    """The number of deleted receipts and payloads per source, dropped days of payloads, effects and email facts."""

    receipts: Counter[str] = field(default_factory=Counter)
    payloads: Counter[str] = field(default_factory=Counter)
    days: list[str] = field(default_factory=list)
    effects: int = 0
    email: int = 0  # email facts past `email_retention`
    objects: int = 0  # payload objects of deleted payloads, and unused ones

    def __add__(self, other: "Pruned") -> "Pruned":
        days, effects = [*self.days, *other.days], self.effects + other.effects
        receipts, payloads = self.receipts + other.receipts, self.payloads + other.payloads
        email, objects = self.email + other.email, self.objects + other.objects
        return Pruned(receipts, payloads, days, effects=effects, email=email, objects=objects)

    def __bool__(self) -> bool:
        return bool(self.receipts or self.payloads or self.days or self.effects or self.email or self.objects)


Progress = Callable[[Pruned], None]


async def prune(
    store: Store,
    horizons: Iterable[Horizon],
    *,
    effects: float | None = None,
    email: "PruneEmail | None" = None,
    payloads_from: datetime | None = None,
    progress: Progress | None = None,
    clock: Clock = SYSTEM,
) -> Pruned | None:
    """Delete rows past their retention. Returns None if another process is pruning.

    Sources that are not in `horizons` are skipped. Keys of effects are deleted after `effects` seconds, or never. With
    `payloads_from`, payloads of receipts before that time are skipped, because an earlier run has scanned them. Raises
    LeadershipLost if this process stalled and another one has taken over.
    """
    pauses = PausesBetweenBatches(clock)
    async with store.retention.start_pruning() as pruning:
        if pruning is None:
            return None
        await pruning.create_days()
        now = await store.operations.now()
        receipts, payloads = cutoffs(await _without_copies(store, horizons), now)
        done = Pruned()
        done.days += await pruning.drop_days(payloads)
        sooner = {source: time for source, time in payloads.items() if time > receipts[source]}
        start = (payloads_from, 0) if payloads_from else None
        async for counts in _delete_batches(pruning.prune_payloads, sooner, start, pauses):
            done.payloads.update(counts)
            _report(progress, done)
        async for counts in _delete_batches(pruning.prune_receipts, receipts, None, pauses):
            done.receipts.update(counts)
            _report(progress, done)
        while payloads and await pruning.clear_effects(payloads, BATCH) == BATCH:
            await pauses.pause()
        if effects is not None:
            done.effects = await _prune_effects(pruning, _cutoff(now, effects), pauses)
        done.email = await prune_email(email, extend=pruning.extend, clock=clock)
        await _free_disk_space(pruning, pauses)
    done.objects = await collect_objects(store)
    return done


async def _without_copies(store: Store, horizons: Iterable[Horizon]) -> list[Horizon]:
    """Leave out sources whose rows here are copies of a move: another shard has the rows, with the same objects."""
    moves = [] if store.shards is None else await store.shards.moves()
    copies = {move.source for move in moves if move.phase in ("left", "arriving")}
    return [horizon for horizon in horizons if horizon.source not in copies]


async def count_prunable(store: Store, horizons: Iterable[Horizon]) -> Pruned:
    """Count the receipts and payloads that `prune` would delete now. Deletes nothing."""
    prunable = Pruned()
    for row in await store.retention.prunable(*cutoffs(horizons, await store.operations.now())):
        prunable.receipts[row.source] += row.receipts
        prunable.payloads[row.source] += row.payloads
    prunable.receipts, prunable.payloads = +prunable.receipts, +prunable.payloads
    return prunable


DeleteBatch = Callable[[Cutoffs, PruneCursor | None, int], Awaitable[tuple[dict[str, int], PruneCursor | None]]]


async def _delete_batches(
    delete: DeleteBatch, before: Cutoffs, cursor: PruneCursor | None, pauses: "PausesBetweenBatches"
) -> AsyncIterator[dict[str, int]]:
    while before:
        counts, cursor = await delete(before, cursor, BATCH)
        yield counts
        if cursor is None:
            return
        await pauses.pause()


async def _prune_effects(pruning: Pruning, before: datetime, pauses: "PausesBetweenBatches") -> int:
    total = count = await pruning.prune_effects(before, BATCH)
    while count == BATCH:
        await pauses.pause()
        count = await pruning.prune_effects(before, BATCH)
        total += count
    return total


async def _free_disk_space(pruning: Pruning, pauses: "PausesBetweenBatches") -> None:
    while await pruning.free_space():
        await pauses.pause()


def _report(progress: Progress | None, done: Pruned) -> None:
    if progress is not None:
        progress(done)


class PausesBetweenBatches:
    """Pauses twice as long as the last batch took, so that the receiver has the database for two thirds of the time."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.since = clock.monotonic()

    async def pause(self) -> None:
        await asyncio.sleep(min(2 * (self.clock.monotonic() - self.since), 1.0))
        self.since = self.clock.monotonic()


PruneEmail = Callable[[], Awaitable[tuple[int, bool]]]
"""Deletes a batch of old email facts. Returns how many, and whether there are more."""


async def _no_leadership() -> None:
    """The default for `extend`: the caller is not the leader, but runs alone."""


async def prune_email(
    delete_batch: PruneEmail | None,
    *,
    extend: Callable[[], Awaitable[None]] = _no_leadership,
    clock: Clock = SYSTEM,
) -> int:
    """Delete all old email facts, batch by batch with pauses between them. Returns how many.

    `extend` is called before each batch. A batch that two processes delete at the same time is deleted once.
    """
    pauses, total, has_more = PausesBetweenBatches(clock), 0, delete_batch is not None
    while delete_batch is not None and has_more:
        await extend()
        count, has_more = await delete_batch()
        total += count
        await pauses.pause()
    if total:
        signals.emit("email_pruned", facts=total)
    return total


class PruneLoop:
    """Prunes in the background, every `every` seconds. Only the leader of the task `prune` prunes.

    Each process becomes the leader in turn, because each may have other sources. `horizons` is read at every run: it
    changes with the managed sources.
    """

    def __init__(
        self,
        store: Store,
        horizons: Collection[Horizon],
        *,
        effects: float | None = None,
        email: PruneEmail | None = None,
        first: float = FIRST,
        every: float = EVERY,
    ) -> None:
        self.store = store
        self.horizons = horizons
        self.effects = effects
        self.email = email
        self.first = first
        self.every = every
        self._runs = 0
        self._scanned_until: datetime | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop immediately. A later run finishes the rest."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        delay = self.first
        while True:
            await asyncio.sleep(delay)
            delay = self.every
            try:
                if await self.prune_once() is None:
                    delay = min(self.every, NEXT_TRY)
                reach(Checkpoint.PRUNED)
            except LeadershipLost:
                signals.emit("leadership_lost", task=PRUNE)
            except Unavailable as error:
                signals.emit("prune_database_unavailable", detail=error.detail)
            except Exception as error:
                signals.log_background_failure("prune", error)

    async def prune_once(self) -> Pruned | None:
        """Prune once. Returns None if another process is pruning.

        Payloads that an earlier run of this process has scanned are scanned again only rarely.
        """
        scanned_until = None if self._runs % FULL_SCAN_EVERY == 0 else self._scanned_until
        horizons, now = list(self.horizons), await self.store.operations.now()
        done = await prune(self.store, horizons, effects=self.effects, email=self.email, payloads_from=scanned_until)
        if done is not None:
            self._runs += 1
            self._scanned_until = min(cutoffs(horizons, now)[1].values(), default=None)
        if done:
            counts = {"receipts": done.receipts.total(), "payloads": done.payloads.total(), "effects": done.effects}
            signals.emit("pruned", **counts, days=len(done.days), objects=done.objects)
        return done
