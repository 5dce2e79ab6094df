"""Moves a source from one shard to another while the inbox runs. It can be killed at any point, and continued.

1. copying: triggers in the old shard record every change. Everything is copied, then the changes, then compared.
2. draining: no handler and no effect of the source begins. Those that run end. Deliveries are still accepted.
3. frozen: deliveries get 503. The last changes are copied and compared.
4. left: the old shard never accepts the source again. This is the commit of the move: before it, the move can be
   aborted, and after it, only continued. The new shard opens, and `main` records the route.
5. The rows in the old shard are deleted.

The phase is a row in each of the two databases, which a trigger locks and reads before every write of the source. So a
process that does not know of the move cannot write to the old shard, and no worker touches the copies too early.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from oncehook.concurrency.clock import SYSTEM, Clock
from oncehook.config.shard_settings import MAIN_SHARD
from oncehook.model.errors import StoreUnavailable
from oncehook.operations.move_plan import RUNNING, MoveRefused, Plan, shards_of
from oncehook.store.shards import Move, MoveChanged, ShardStore
from oncehook.store.store import Store

PAGE = 500
"""Receipts, effects or entities per transaction."""

PAGE_BYTES = 8 * 2**20
"""Bytes of bodies per transaction, unless one body is larger."""

MAX_CHANGES = 10_000
"""Changes that are read at once. A row that changed several times is copied once."""

FEW_CHANGES = 100
"""The source is frozen when at most this many changes wait, so that senders see few 503s."""

MAX_COMPARISONS = 40
"""How often a frozen source is compared again while it differs."""

PAUSE = 0.05
CHANGED = "another process has continued, finished or aborted the move of {}"
T = TypeVar("T")


@dataclass(slots=True)
class Moved:
    """The progress of a move, and its result."""

    source: str
    phase: str = "begin"
    receipts: int = 0
    effects: int = 0
    entities: int = 0
    changes: int = 0
    compared: int = 0
    deleted: int = 0
    frozen_seconds: float | None = None
    counts: dict[str, int] = field(default_factory=dict)  # of all rows, when the source was frozen


Progress = Callable[[Moved], None]


class SourceMove:
    """One move. Every step may be repeated."""

    def __init__(
        self,
        stores: Mapping[str, Store],
        source: str,
        plan: Plan,
        *,
        actor: str,
        wait: float = 60.0,
        progress: Progress | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.source = source
        self.plan = plan
        self.actor = actor
        self.wait = wait
        self.clock = clock
        self.done = Moved(source)
        self.old, self.new = shards_of(stores[plan.old]), shards_of(stores[plan.new])
        self.main = shards_of(stores[MAIN_SHARD])
        self._wakeups = stores[plan.new].wakeups
        self._progress = progress or (lambda done: None)

    async def check(self) -> None:
        """Raise MoveRefused if effects of the source share a scope with those of another source."""
        scopes = await self.old.effect_scopes(self.source)
        shared = await self.old.shared_scopes(self.source, scopes) + await self.new.shared_scopes(self.source, scopes)
        if shared:
            raise MoveRefused(
                f"effects of {self.source} and of other sources have the scope {shared[0]!r}: in two shards, the same "
                f"key would run twice. Such sources must live in one shard"
            )

    async def run(self) -> Moved:
        """Run or continue the move to its end. Raises MoveRefused if handlers do not end within `wait` seconds."""
        if self.plan.phase is None:
            await self._begin()
        if self.plan.phase in (None, *RUNNING):
            if self.plan.phase != "frozen":
                await self._copy()
                await self._drain()
            await self._freeze()
        else:
            await self._open()
        await self._clean()
        self._report("done")
        return self.done

    # -- copying --------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Guard the source in both shards. Rows that an earlier, aborted move has left in the new one are deleted."""
        self._report("begin")
        await self.old.copy_keys(self.new)
        await self._begin_in(self.new, "arriving")
        await self._delete(self.new)
        await self._begin_in(self.old, "copying")

    async def _begin_in(self, shard: ShardStore, phase: str) -> None:
        move = Move(source=self.source, phase=phase, from_shard=self.plan.old, to_shard=self.plan.new)
        if not await self._retry(lambda: shard.begin(move, self.actor)):
            raise MoveChanged(CHANGED.format(self.source))

    async def _copy(self) -> None:
        """Copy everything once, then what has changed. Continues where an earlier run has stopped.

        Rows that are added after the beginning are among the changes.
        """
        move = await self.old.move_of(self.source)
        cursors = json.loads(move.cursors if move is not None else "{}")
        if "until" not in cursors:
            cursors["until"] = await self.old.last(self.source)
        self._report("copying")
        await self._copy_receipts(cursors)
        await self._copy_effects(cursors)
        await self._copy_entities(cursors)
        await self._catch_up()
        await self._compare(cursors)
        await self._catch_up()

    async def _copy_receipts(self, cursors: dict[str, Any]) -> None:
        after, until = cursors.get("receipts", 0), cursors["until"]["receipts"]
        while rows := await self.old.receipts(self.source, after, until, PAGE):
            ids = first_bytes(rows)
            await self.old.copy_receipts(self.source, ids, self.new)
            after = cursors["receipts"] = ids[-1]
            self.done.receipts += len(ids)
            await self._save(cursors)

    async def _copy_effects(self, cursors: dict[str, Any]) -> None:
        after, until = cursors.get("effects", 0), cursors["until"]["effects"]
        while ids := await self.old.effects(self.source, after, until, PAGE):
            await self.old.copy_effects(self.source, ids, self.new, finished=True)
            after = cursors["effects"] = ids[-1]
            self.done.effects += len(ids)
            await self._save(cursors)

    async def _copy_entities(self, cursors: dict[str, Any]) -> None:
        after = cursors.get("entities", ["", "", ""])
        while keys := await self.old.entities(self.source, after, PAGE):
            await self.old.copy_entities(self.source, keys, self.new)
            after = cursors["entities"] = keys[-1]
            self.done.entities += len(keys)
            await self._save(cursors)

    async def _catch_up(self) -> None:
        """Copy changes until few wait, or until as many arrive as are copied."""
        before = 2 * MAX_CHANGES
        while (number := await self._copy_changes(finished=True)) > FEW_CHANGES and number < 0.8 * before:
            before = number if number < MAX_CHANGES else before  # a full page says nothing about the rest

    async def _copy_changes(self, *, finished: bool) -> int:
        """Copy the oldest changes, and return their number. A row that changes again has a newer change."""
        changes = await self.old.changes(self.source, MAX_CHANGES)
        keys = {kind: list(dict.fromkeys(c.key for c in changes if c.kind == kind)) for kind in KINDS}
        for page in pages(keys["receipt"]):
            await self.old.copy_receipts(self.source, [int(key) for key in page], self.new)
        for page in pages(keys["effect"]):
            await self.old.copy_effects(self.source, [int(key) for key in page], self.new, finished=finished)
        for page in pages(keys["entity"]):
            await self.old.copy_entities(self.source, [json.loads(key) for key in page], self.new)
        if changes:
            await self.old.delete_changes(self.source, [change.id for change in changes])
        self.done.changes += len(changes)
        return len(changes)

    async def _compare(self, cursors: dict[str, Any]) -> None:
        """Compare all receipts with their copies. One that differs has changed, and is copied again."""
        self._report("comparing")
        after, until = cursors.get("compared", 0), cursors["until"]["receipts"]
        while rows := await self.old.receipts(self.source, after, until, PAGE):
            ids = [id for id, _ in rows]
            differing = await self._differing(ids)
            if differing:
                await self.old.copy_receipts(self.source, differing, self.new)
            after = cursors["compared"] = ids[-1]
            self.done.compared += len(ids)
            await self._save(cursors)

    async def _differing(self, ids: Sequence[int], *, effects: bool = False) -> list[int]:
        old, new = await asyncio.gather(
            self.old.digests(self.source, ids, effects=effects), self.new.digests(self.source, ids, effects=effects)
        )
        return [id for id in ids if old.get(id) != new.get(id)]

    async def _save(self, cursors: dict[str, Any]) -> None:
        await self.old.put_cursors(self.source, json.dumps(cursors))
        self._report(self.done.phase)

    # -- switching ------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Wait until no handler and no effect runs, and go on copying changes. On a timeout, resume the source."""
        self._report("draining")
        await self._set_phase("draining")
        ends = self.clock.monotonic() + self.wait
        while running := await self.old.running(self.source):
            if self.clock.monotonic() > ends:
                await self._set_phase("copying")
                raise MoveRefused(
                    f"{running} handlers or effects of {self.source} still run after {self.wait:g} s; the source runs "
                    f"as before. Try again with a longer --wait, or undo the move with --abort"
                )
            await self._copy_changes(finished=True)
            await asyncio.sleep(PAUSE)
        await self._catch_up()

    async def _freeze(self) -> None:
        """Reject deliveries, copy the last changes, and compare what they changed and how many rows there are."""
        started = self.clock.monotonic()
        await self._set_phase("frozen")
        self._report("frozen")
        changed = await self._copy_last_changes()
        effects = await self.old.unfinished_effects(self.source)
        for page in pages(effects):
            await self.old.copy_effects(self.source, page, self.new, finished=False)
        wrong = await self._wrong(changed, effects)
        for _ in range(MAX_COMPARISONS):
            if not wrong:
                break
            await asyncio.sleep(PAUSE)  # duplicates of earlier deliveries are still being recorded
            changed |= await self._copy_last_changes()
            wrong = await self._wrong(changed, effects)
        if wrong:
            raise MoveRefused(
                f"the copy of {self.source} differs ({'; '.join(wrong[:5])}), so it was not switched: undo the move "
                f"with --abort, and report this as a bug"
            )
        await self._set_phase("left")
        await self._open()
        self.done.frozen_seconds = round(self.clock.monotonic() - started, 3)

    async def _copy_last_changes(self) -> set[int]:
        """Copy the changes of a frozen source. A short page is the last. Returns the receipts that were copied."""
        changed: set[int] = set()
        while True:
            changes = await self.old.changes(self.source, MAX_CHANGES)
            changed |= {int(change.key) for change in changes if change.kind == "receipt"}
            if await self._copy_changes(finished=False) < MAX_CHANGES:
                return changed

    async def _wrong(self, receipts: set[int], effects: Sequence[int]) -> list[str]:
        """Return a text for each receipt, effect and number of rows that differs between the shards."""
        self.done.counts, copied = await asyncio.gather(self.old.counts(self.source), self.new.counts(self.source))
        counts, ids = self.done.counts.items(), sorted(receipts)
        wrong = [f"{copied[name]} of {number} {name}" for name, number in counts if copied[name] != number]
        for page in pages(ids):
            wrong += [f"receipt {id}" for id in await self._differing(page)]
        for page in pages(effects):
            wrong += [f"effect {id}" for id in await self._differing(page, effects=True)]
        return wrong

    async def _open(self) -> None:
        """Open the new shard and record the route."""
        await self._retry(lambda: self.new.open(self.source, self.old))
        await self.main.put_route(self.source, self.plan.new, self.actor, number=self.plan.route)
        await self._wakeups.notify()

    async def _clean(self) -> None:
        """Drop the triggers, and delete the rows in the old shard, unfinished ones first. The guard stays there."""
        self._report("cleaning")
        await self._retry(lambda: self.old.unwatch(self.source))
        await self._retry(lambda: self.new.unwatch(self.source))
        await self._delete(self.old)

    async def _delete(self, shard: ShardStore) -> None:
        for unfinished in (True, False):
            while number := await shard.delete_leftovers(self.source, PAGE, unfinished=unfinished):
                self.done.deleted += number
                self._report(self.done.phase)

    async def abort(self) -> None:
        """Undo a move before its commit: the source stays where it was. Raises MoveRefused if it is too late."""
        if self.plan.phase == "left":
            raise MoveRefused(f"{self.source} has left {self.plan.old}: continue the move, and move it back afterwards")
        self._report("aborting")
        if self.plan.phase is not None and not await self._retry(lambda: self.old.open(self.source, None)):
            raise MoveChanged(CHANGED.format(self.source))
        await self._retry(lambda: self.old.unwatch(self.source))
        there = await self.new.move_of(self.source)
        if there is not None and there.phase == "arriving":
            await self._delete(self.new)
            await self._retry(lambda: self.new.discard(self.source))
        await self._retry(lambda: self.new.unwatch(self.source))
        self._report("aborted")

    # -- retries --------------------------------------------------------------------------------------------------

    async def _set_phase(self, phase: str) -> None:
        if not await self._retry(lambda: self.old.set_phase(self.source, phase, self.actor)):
            raise MoveChanged(CHANGED.format(self.source))

    async def _retry(self, change: Callable[[], Awaitable[T]]) -> T:
        """Repeat a change whose lock a running transaction holds, for `wait` seconds. In between, writers go on."""
        ends = self.clock.monotonic() + self.wait
        while True:
            try:
                return await change()
            except StoreUnavailable:
                if self.clock.monotonic() > ends:
                    raise
                await asyncio.sleep(PAUSE)

    def _report(self, phase: str) -> None:
        self.done.phase = phase
        self._progress(self.done)


KINDS = ("receipt", "effect", "entity")


def first_bytes(rows: Sequence[tuple[int, int]]) -> list[int]:
    """The first ids whose bodies have PAGE_BYTES together, at least one."""
    ids, total = [rows[0][0]], rows[0][1]
    for id, size in rows[1:]:
        total += size
        if total > PAGE_BYTES:
            break
        ids.append(id)
    return ids


def pages(keys: Sequence[T]) -> list[Sequence[T]]:
    return [keys[start : start + PAGE] for start in range(0, len(keys), PAGE)]
