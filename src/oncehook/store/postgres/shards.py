"""The shards of PostgreSQL: identities, routes, and the rows that a move copies.

Rows are copied as JSON of whole rows, so that a new column needs no change here.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from oncehook.config.shard_settings import MAIN_SHARD
from oncehook.model.errors import ConfigurationError
from oncehook.model.rows import Pause
from oncehook.store.decode import decode
from oncehook.store.directory import next_revision
from oncehook.store.executor import Run
from oncehook.store.postgres.executor import fetch, run_on
from oncehook.store.postgres.pool import PostgresPool, partition_name
from oncehook.store.shards import IDS_PER_SHARD, Move, MoveChange, MoveChanged, Route, Shard, ShardFigures, ShardStore

LOCK_TIMEOUT = "300ms"
"""How long a change of a phase waits for running transactions. Writers of the source wait for as long."""

NONE = ""
"""The phase of a source that was never moved."""

BEFORE = {
    "arriving": (NONE, "left", "arriving"),
    "copying": (NONE, "here", "copying", "draining"),
    "draining": ("copying", "draining"),
    "frozen": ("draining", "frozen"),
    "left": ("frozen",),
    "here": ("arriving", "copying", "draining", "frozen"),
}
"""The phases from which a move can reach each phase. A move that began earlier finds another phase, and stops."""

STATEMENT_SECONDS = 600.0
PAUSE_REASON = "the source is being moved to another shard"


class PostgresShardStore:
    """Implements `ShardStore`."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    # -- identity and routes --------------------------------------------------------------------------------------

    async def here(self) -> Shard | None:
        shards = decode(await self._read("shard_here"), Shard)
        return shards[0] if shards else None

    async def number_of(self, name: str) -> int:
        async with self._transaction() as run:
            await run("lock_shards", {})
            row = (await run("shard_number", {"name": name}))[0]
            if row["number"] is None:
                await run("add_shard", {"name": name, "number": row["free"], "is_here": False})
            number: int = row["free"] if row["number"] is None else row["number"]
            return number

    async def become(self, name: str, number: int) -> None:
        async with self._transaction() as run:
            await run("lock_shards", {})
            existing = decode(await run("shard_here", {}), Shard)
            if existing and existing[0] != Shard(name, number):
                raise ConfigurationError(
                    f"the database of shard {name} is the shard {existing[0].name} (number {existing[0].number}) of "
                    f"this or another inbox, and shard {name} is number {number}: correct the addresses, or use an "
                    f"empty database"
                )
            if existing:
                return
            if name != MAIN_SHARD:
                if (await run("has_events", {}))[0]["has_events"]:
                    raise ConfigurationError(
                        f"the database of shard {name} already has events, so their numbers could clash with those of "
                        f"other shards: use an empty database, and move sources to it with `oncehook shards move`"
                    )
                await run("start_ids", {"first": number * IDS_PER_SHARD})
            await run("add_shard", {"name": name, "number": number, "is_here": True})

    async def routes(self) -> dict[str, Route]:
        return {route.source: route for route in decode(await self._read("routes"), Route)}

    async def put_route(self, source: str, shard: str, actor: str, *, number: int) -> bool:
        async with self._transaction() as run:
            await next_revision(run)
            return bool(await run("put_route", {"source": source, "shard": shard, "actor": actor, "number": number}))

    async def figures(self) -> ShardFigures:
        return decode(await self._read("shard_figures"), ShardFigures)[0]

    # -- the phases of a move -------------------------------------------------------------------------------------

    async def move_of(self, source: str) -> Move | None:
        moves = decode(await self._read("move_of", {"source": source}), Move)
        return moves[0] if moves else None

    async def moves(self) -> list[Move]:
        return decode(await self._read("moves"), Move)

    async def begin(self, move: Move, actor: str) -> bool:
        logs = move.phase == "copying"
        async with self._transaction(move.source) as run:
            before = await _lock(run, move.source, move.phase)
            if before is None:
                return False
            await run("watch_source", {"source": move.source, "logs": logs})
            await run("clear_move_changes", {"source": move.source})
            paused = before.has_paused or (not logs and await _pause(run, move.source, actor))
            columns = {name: getattr(move, name) for name in ("source", "phase", "from_shard", "to_shard")}
            await run("put_move", {**columns, "has_paused": paused, "actor": actor})
            return True

    async def set_phase(self, source: str, phase: str, actor: str) -> bool:
        async with self._transaction(source) as run:
            move = await _lock(run, source, phase)
            if move is None:
                return False
            paused = move.has_paused
            if phase == "draining" and not paused:
                paused = await _pause(run, source, actor)
            elif phase == "copying" and paused:
                await run("unpause_moved", {"source": source})
                paused = False
            await run("set_phase", {"source": source, "phase": phase, "has_paused": paused})
            return True

    async def open(self, source: str, pause_from: ShardStore | None) -> bool:
        of_person = await pause_from.pause_of_person(source) if isinstance(pause_from, PostgresShardStore) else None
        async with self._transaction(source) as run:
            move = await _lock(run, source, "here")
            if move is None:
                return False
            if move.has_paused:
                await run("unpause_moved", {"source": source})
            if of_person is not None:
                columns = ("source", "actor", "reason", "paused_at", "ends_at")
                await run("copy_pause", {name: getattr(of_person, name) for name in columns})
            await run("set_phase", {"source": source, "phase": "here", "has_paused": False})
            return True

    async def discard(self, source: str) -> None:
        async with self._transaction(source) as run:
            await run("lock_move", {"source": source})
            moves = decode(await run("move_of", {"source": source}), Move)
            if await run("delete_move", {"source": source}) and moves[0].has_paused:
                await run("unpause_moved", {"source": source})

    async def unwatch(self, source: str) -> None:
        async with self._transaction(source) as run:
            moves = decode(await run("move_of", {"source": source}), Move)
            phase = moves[0].phase if moves else NONE
            if phase not in (NONE, "left", "here"):
                return  # another move has begun
            await run("unwatch_source", {"source": source, "guards": phase != "left"})
            await run("clear_move_changes", {"source": source})
            if moves and moves[0].has_paused:
                await run("unpause_moved", {"source": source})
                await run("set_phase", {"source": source, "phase": phase, "has_paused": False})

    async def copy_keys(self, target: ShardStore) -> None:
        await target.write_keys((await self._read("keys_to_move"))[0]["rows"])

    async def write_keys(self, rows: str) -> None:
        async with self._transaction() as run:
            await run("write_moved_keys", {"rows": rows})

    async def pause_of_person(self, source: str) -> Pause | None:
        """Return the pause of a source, unless the move made it."""
        move, pauses = await self.move_of(source), decode(await self._read("source_pause", {"source": source}), Pause)
        return pauses[0] if pauses and (move is None or not move.has_paused) else None

    async def put_cursors(self, source: str, cursors: str) -> None:
        async with self._transaction() as run:
            await run("put_cursors", {"source": source, "cursors": cursors})

    async def running(self, source: str) -> int:
        row = (await self._read("moved_work", {"source": source}))[0]
        return int(row["handlers"]) + int(row["effects"])

    # -- the rows of a move ---------------------------------------------------------------------------------------

    async def last(self, source: str) -> dict[str, int]:
        return dict((await self._read("last_moved", {"source": source}))[0])

    async def receipts(self, source: str, after: int, until: int, limit: int) -> list[tuple[int, int]]:
        parameters = {"source": source, "after": after, "until": until, "limit": limit}
        async with self._transaction(source) as run:
            return [(row["id"], row["size"]) for row in await run("receipts_to_move", parameters)]

    async def copy_receipts(self, source: str, ids: Sequence[int], target: ShardStore) -> None:
        keys = _array(ids)
        async with self._transaction(source) as run:
            row = (await run("read_moved", {"source": source, "ids": keys}))[0]
        await target.write(source, "receipt", keys, row["rows"], row["days"])

    async def effects(self, source: str, after: int, until: int, limit: int) -> list[int]:
        parameters = {"source": source, "after": after, "until": until, "limit": limit}
        rows = await self._read("effects_to_move", parameters)
        return [row["id"] for row in rows]

    async def unfinished_effects(self, source: str) -> list[int]:
        parameters = {"source": source, "limit": 2**31, "unfinished": True}
        return [row["id"] for row in await self._read("leftover_effects", parameters)]

    async def copy_effects(self, source: str, ids: Sequence[int], target: ShardStore, *, finished: bool) -> None:
        keys = _array(ids)
        parameters: dict[str, Any] = {"source": source, "ids": keys} | ({"finished": True} if finished else {})
        async with self._transaction(source) as run:
            rows = (await run("read_moved_effects", parameters))[0]["rows"]
        await target.write(source, "effect", keys, rows, ())

    async def entities(self, source: str, after: Sequence[str], limit: int) -> list[list[str]]:
        scope, kind, id = after
        parameters = {"source": source, "after_scope": scope, "after_kind": kind, "after_id": id, "limit": limit}
        return [[row["scope"], row["kind"], row["id"]] for row in await self._read("entities_to_move", parameters)]

    async def copy_entities(self, source: str, keys: Sequence[Sequence[str]], target: ShardStore) -> None:
        text = json.dumps(keys)
        async with self._transaction(source) as run:
            rows = (await run("read_moved_entities", {"source": source, "keys": text}))[0]["rows"]
        await target.write(source, "entity", text, rows, ())

    async def write(self, source: str, kind: str, keys: str, rows: str, days: Sequence[Any]) -> None:
        await self._create_partitions(days)
        delete, insert, name = _WRITES[kind]
        async with self._transaction(source) as run:
            await _hold(run, source, "arriving")
            await run(delete, {"source": source, name: keys})
            await run(insert, {"rows": rows})

    async def changes(self, source: str, limit: int) -> list[MoveChange]:
        return decode(await self._read("move_changes", {"source": source, "limit": limit}), MoveChange)

    async def delete_changes(self, source: str, ids: Sequence[int]) -> None:
        async with self._transaction() as run:
            await run("delete_move_changes", {"source": source, "ids": _array(ids)})

    async def digests(self, source: str, ids: Sequence[int], *, effects: bool = False) -> dict[int, str]:
        async with self._transaction(source) as run:
            name = "digest_moved_effects" if effects else "digest_moved"
            return {row["id"]: row["digest"] for row in await run(name, {"source": source, "ids": _array(ids)})}

    async def counts(self, source: str) -> dict[str, int]:
        return dict((await self._read("moved_counts", {"source": source}))[0])

    async def shared_scopes(self, source: str, scopes: Sequence[str] | None = None) -> list[str]:
        scopes = await self.effect_scopes(source) if scopes is None else scopes
        rows = await self._read("shared_scopes", {"source": source, "scopes": json.dumps(scopes)})
        return [row["scope"] for row in rows]

    async def effect_scopes(self, source: str) -> list[str]:
        return [row["scope"] for row in await self._read("effect_scopes", {"source": source})]

    async def delete_leftovers(self, source: str, limit: int, *, unfinished: bool) -> int:
        parameters: dict[str, Any] = {"source": source, "limit": limit} | ({"unfinished": True} if unfinished else {})
        async with self._transaction(source) as run:
            await _hold(run, source, "left", "arriving")
            receipts = [row["id"] for row in await run("leftover_receipts", parameters)]
            effects = [row["id"] for row in await run("leftover_effects", parameters)]
            entities = [] if unfinished else await self.entities(source, ("", "", ""), limit)
            await run("delete_moved_entities", {"source": source, "keys": json.dumps(entities)})
            await run("delete_moved_effects", {"source": source, "ids": _array(effects)})
            await run("delete_moved", {"source": source, "ids": _array(receipts)})
        return len(receipts) + len(effects) + len(entities)

    # -- connections ----------------------------------------------------------------------------------------------

    async def _read(self, name: str, parameters: Mapping[str, Any] | None = None) -> list[Any]:
        async with self._pool.connection() as connection:
            return await fetch(connection, name, parameters or {}, timeout=STATEMENT_SECONDS)

    @asynccontextmanager
    async def _transaction(self, source: str | None = None) -> AsyncIterator[Run]:
        """A transaction with a lock timeout. With `source`, it copies that source, so no guard stops it."""
        async with self._pool.connection() as connection, connection.transaction():
            run = run_on(connection, timeout=STATEMENT_SECONDS)
            await run("move_session", {"source": source or "", "lock_timeout": LOCK_TIMEOUT if source else "0"})
            yield run

    async def _create_partitions(self, days: Sequence[Any]) -> None:
        """Create the partitions for payloads of these days: the target may not have them yet."""
        if not days:
            return
        async with self._pool.connection() as connection:
            existing = await self._pool.partitions(connection)
            for day in days:
                if partition_name(day) not in existing:
                    await self._pool.create_partition(connection, day)


_WRITES = {
    "receipt": ("delete_moved", "write_moved", "ids"),
    "effect": ("delete_moved_effects", "write_moved_effects", "ids"),
    "entity": ("delete_moved_entities", "write_moved_entities", "keys"),
}
"""The statements that delete and insert rows of each kind, and the parameter with their keys."""


def _array(ids: Sequence[int]) -> str:
    return "{" + ",".join(map(str, ids)) + "}"


def _texts(values: Sequence[str]) -> str:
    return "{" + ",".join(values) + "}"


async def _lock(run: Run, source: str, phase: str) -> Move | None:
    """Lock the phase of a source alone, and return its move. None if `phase` cannot follow its phase."""
    await run("lock_move", {"source": source})
    moves = decode(await run("move_of", {"source": source}), Move)
    move = moves[0] if moves else Move(source=source, phase=NONE, from_shard="", to_shard="")
    return move if move.phase in BEFORE[phase] else None


async def _hold(run: Run, source: str, *phases: str) -> None:
    """Keep the phase until the end of the transaction. Raises MoveChanged if it is not one of `phases`."""
    if not await run("hold_move", {"source": source, "phases": _texts(phases)}):
        raise MoveChanged(f"another process has continued, finished or aborted the move of {source}")


async def _pause(run: Run, source: str, actor: str) -> bool:
    """Pause a source, unless it is paused already. Returns whether it did."""
    return bool(await run("pause_moved", {"source": source, "actor": actor, "reason": PAUSE_REASON}))
