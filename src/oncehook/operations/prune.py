"""What is no longer needed goes: receipts after their window, payloads after their retention.

Only finished receipts go, `processed` or `ignored`; unfinished work and dead letters stay however old they are. While a
receipt is there, its event is a duplicate when it comes again; afterwards it is a fresh one. So a source's window is
longer than its provider goes on retrying, always.

Everything goes in steps: short transactions with pauses between, so that the door does not wait. A step that was cut
off is done again at the next turn.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.settings import Default, Horizon, Settings, SourceSettings
from oncehook.model.errors import ConfigurationError, Unavailable
from oncehook.model.values import as_duration
from oncehook.observability import signals
from oncehook.observability.checkpoints import Checkpoint, reach
from oncehook.providers.definition import Provider
from oncehook.store.operator_protocols import Pruning
from oncehook.store.rows import Cutoffs, PruneCursor
from oncehook.store.store import Store

MARGIN = 5 * 86400.0
"""How much longer than its provider retries a receipt is kept."""

WHOLE_DAYS = 2 * 86400.0
"""A horizon from here on ends with the UTC day, so that a day of payloads goes at once; a shorter one is exact."""

STEP = 500
EVERY = 3600.0
FIRST = 60.0
FULL_TURN = 24
"""Every so many turns all payloads are looked at again, those of old dead letters that were replayed among them."""


def horizon(name: str, source: SourceSettings, provider: Provider, settings: Settings) -> Horizon:
    """How long a source's rows are kept. Raises ConfigurationError for a window that was set too short."""
    needed = (provider.horizon or 0.0) + MARGIN
    window = settings.dedupe_window if source.dedupe_window is None else source.dedupe_window
    if window < needed and not isinstance(window, Default):
        where = "dedupe_window" if source.dedupe_window is None else f"sources.{name}.dedupe_window"
        raise ConfigurationError(
            f"{where} is {as_duration(window)}: {provider.title or provider.name} may send an event of sources.{name} "
            f"again after that, and it would be handled twice; the smallest allowed is {as_duration(needed)}"
        )
    window = max(float(window), needed)
    retention = settings.payload_retention if source.payload_retention is None else source.payload_retention
    return Horizon(name, window, min(float(retention), window))


def effect_horizon(settings: Settings, horizons: Iterable[Horizon]) -> float | None:
    """How long the keys of effects are kept; None: for ever. They outlive every receipt that could ask again."""
    kept, longest = settings.effect_retention, max([settings.dedupe_window, *(one.receipts for one in horizons)])
    if kept is not None and kept < longest:
        raise ConfigurationError(
            f"effect_retention is {as_duration(kept)}: an event that is kept for longer could ask for its effect once "
            f"more, and it would be performed twice; the smallest allowed is {as_duration(longest)}, or leave it out"
        )
    return kept


def cutoffs(horizons: Iterable[Horizon], now: datetime) -> tuple[dict[str, datetime], dict[str, datetime]]:
    """Per source, the times before which receipts and payloads may go."""
    horizons = list(horizons)
    return (
        {horizon.source: _cutoff(now, horizon.receipts) for horizon in horizons},
        {horizon.source: _cutoff(now, horizon.payloads) for horizon in horizons},
    )


def _cutoff(now: datetime, seconds: float) -> datetime:
    try:
        moment = now.astimezone(UTC) - timedelta(seconds=seconds)
    except OverflowError:  # kept for ever
        return datetime(1970, 1, 1, tzinfo=UTC)
    return moment.replace(hour=0, minute=0, second=0, microsecond=0) if seconds >= WHOLE_DAYS else moment


@dataclass
class Pruned:
    """What went, or would go: receipts and payloads by source, whole days of payloads, effects and email facts."""

    receipts: Counter[str] = field(default_factory=Counter)
    payloads: Counter[str] = field(default_factory=Counter)
    days: list[str] = field(default_factory=list)
    effects: int = 0
    email: int = 0  # email facts, which go after `email_retention`

    def __bool__(self) -> bool:
        return bool(self.receipts or self.payloads or self.days or self.effects or self.email)


Progress = Callable[[Pruned], None]


async def prune(
    store: Store,
    horizons: Iterable[Horizon],
    *,
    effects: float | None = None,
    payloads_from: datetime | None = None,
    progress: Progress | None = None,
    clock: Clock = SYSTEM,
) -> Pruned | None:
    """Remove what is past its horizon; None if another process does so right now.

    Sources without a horizon are left alone. Keys of effects go after `effects` seconds, or never. With
    `payloads_from`, payloads of receipts before that time were looked at already.
    """
    pace = Pace(clock)
    async with store.retention.start_pruning() as pruning:
        if pruning is None:
            return None
        await pruning.create_days()
        now = await store.operations.now()
        receipts, payloads = cutoffs(horizons, now)
        done = Pruned()
        done.days += await pruning.drop_days(payloads)
        sooner = {source: time for source, time in payloads.items() if time > receipts[source]}
        start = (payloads_from, 0) if payloads_from else None
        async for gone in _steps(pruning.prune_payloads, sooner, start, pace):
            done.payloads.update(gone)
            _tell(progress, done)
        async for gone in _steps(pruning.prune_receipts, receipts, None, pace):
            done.receipts.update(gone)
            _tell(progress, done)
        while payloads and await pruning.clear_effects(payloads, STEP) == STEP:
            await pace.rest()
        if effects is not None:
            done.effects = await _prune_effects(pruning, _cutoff(now, effects), pace)
        await _give_back(pruning, pace)
        return done


async def count_prunable(store: Store, horizons: Iterable[Horizon]) -> Pruned:
    """How many receipts and payloads `prune` would remove now. Removes nothing."""
    would = Pruned()
    for row in await store.retention.prunable(*cutoffs(horizons, await store.operations.now())):
        would.receipts[row.source] += row.receipts
        would.payloads[row.source] += row.payloads
    would.receipts, would.payloads = +would.receipts, +would.payloads
    return would


Step = Callable[[Cutoffs, PruneCursor | None, int], Awaitable[tuple[dict[str, int], PruneCursor | None]]]


async def _steps(
    step: Step, before: Cutoffs, cursor: PruneCursor | None, pace: "Pace"
) -> AsyncIterator[dict[str, int]]:
    while before:
        gone, cursor = await step(before, cursor, STEP)
        yield gone
        if cursor is None:
            return
        await pace.rest()


async def _prune_effects(pruning: Pruning, before: datetime, pace: "Pace") -> int:
    gone = step = await pruning.prune_effects(before, STEP)
    while step == STEP:
        await pace.rest()
        step = await pruning.prune_effects(before, STEP)
        gone += step
    return gone


async def _give_back(pruning: Pruning, pace: "Pace") -> None:
    while await pruning.free_space():
        await pace.rest()


def _tell(progress: Progress | None, done: Pruned) -> None:
    if progress is not None:
        progress(done)


class Pace:
    """Rests for twice as long as was worked, so that two thirds of the time are the door's."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.since = clock.monotonic()

    async def rest(self) -> None:
        await asyncio.sleep(min(2 * (self.clock.monotonic() - self.since), 1.0))
        self.since = self.clock.monotonic()


PruneEmail = Callable[[], Awaitable[tuple[int, bool]]]
"""Deletes some email facts that are old: how many went, and whether there are more."""


async def prune_email(step: PruneEmail | None, *, clock: Clock = SYSTEM) -> int:
    """Delete all of them, step by step with rests between; how many went."""
    pace, gone, is_more = Pace(clock), 0, step is not None
    while step is not None and is_more:
        went, is_more = await step()
        gone += went
        await pace.rest()
    if gone:
        signals.emit("email_pruned", facts=gone)
    return gone


class Janitor:
    """Prunes by itself, again and again, in whichever process has the turn."""

    def __init__(
        self,
        store: Store,
        horizons: Iterable[Horizon],
        *,
        effects: float | None = None,
        email: PruneEmail | None = None,
        first: float = FIRST,
        every: float = EVERY,
    ) -> None:
        self.store = store
        self.horizons = list(horizons)
        self.effects = effects
        self.email = email
        self.first = first
        self.every = every
        self._turns = 0
        self._looked: datetime | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._keep_pruning())

    async def stop(self) -> None:
        """Stop at once: what is half done is finished at a later turn."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _keep_pruning(self) -> None:
        pause = self.first
        while True:
            await asyncio.sleep(pause)
            pause = self.every
            try:
                await self.turn()
                await prune_email(self.email)
                reach(Checkpoint.PRUNED)
            except Unavailable as error:
                signals.emit("prune_database_unavailable", detail=error.detail)
            except Exception as error:
                signals.log_background_failure("prune", error)

    async def turn(self) -> Pruned | None:
        """One turn. What an earlier turn of this process has looked at is looked at again only now and then."""
        looked = None if self._turns % FULL_TURN == 0 else self._looked
        now = await self.store.operations.now()
        done = await prune(self.store, self.horizons, effects=self.effects, payloads_from=looked)
        if done is not None:
            self._turns += 1
            self._looked = min(cutoffs(self.horizons, now)[1].values(), default=None)
        if done:
            gone = {"receipts": done.receipts.total(), "payloads": done.payloads.total(), "effects": done.effects}
            signals.emit("pruned", **gone, days=len(done.days))
        return done


# -- forgetting -----------------------------------------------------------------------------------------------------

PAGE = 100


async def mentioning(store: Store, address: str) -> AsyncIterator[tuple[int, bool]]:
    """Every receipt with a payload, and whether that holds the address."""
    after = 0
    while page := await store.retention.payloads(after, PAGE):
        for row in page:
            yield row.receipt_id, mentions(row.body, address) or mentions(row.headers.encode(), address)
        after = page[-1].receipt_id


def mentions(body: bytes, address: str) -> bool:
    """Whether an address is in a body, in any case, and as JSON and forms may write it."""
    wanted = address.lower()
    written = {wanted, quote(wanted, safe="").lower(), wanted.replace("@", "\\u0040"), json.dumps(wanted)[1:-1].lower()}
    text = body.decode("utf-8", "replace").lower()
    return any(way in text for way in written)


async def forget(store: Store, receipts: Sequence[int], *, actor: str, object_id: str = "", address: str = "") -> int:
    """Erase the payloads of `receipts`; how many. The receipts stay, so their events are duplicates as before.

    Of an address only a hash is noted: the note of an erasure must not keep what was erased.
    """
    about = {"object": object_id}
    if address:
        about = {"address": f"sha256:{hashlib.sha256(address.lower().encode()).hexdigest()}"}
    erased = 0
    for start in range(0, len(receipts), STEP):
        part = list(receipts[start : start + STEP])
        erased += await store.retention.erase(
            part, address.lower() or None, actor, json.dumps({**about, "receipts": part})
        )
    return erased
