"""Finds out where the move of a source begins or continues, from the phases that both databases have recorded."""

from collections.abc import Mapping
from dataclasses import dataclass

from oncehook.config.shard_settings import MAIN_SHARD
from oncehook.model.errors import OncehookError
from oncehook.store.routes import Routes
from oncehook.store.shards import ShardStore
from oncehook.store.store import Store

RUNNING = ("copying", "draining", "frozen")
"""The phases of the old shard before the commit of a move."""


class MoveRefused(OncehookError):
    """A source cannot be moved. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The two shards of a move, and whether it has begun before."""

    old: str
    new: str
    phase: str | None
    """The phase in the old shard. None if the move has not begun there."""

    route: int
    """The number of changes of the route so far."""


async def plan_move(stores: Mapping[str, Store], routes: Routes, source: str, to: str | None) -> Plan:
    """Find where a move begins or continues. Raises MoveRefused if it is not possible."""
    moves = {name: await shards_of(store).move_of(source) for name, store in stores.items()}
    here = routes.shards_of(source)
    recorded = (await shards_of(stores[MAIN_SHARD]).routes()).get(source)
    route = 0 if recorded is None else recorded.number
    if len(here) > 1:
        raise MoveRefused(f"the tenants of {source} are spread over {', '.join(here)}: such a source cannot be moved")
    active = [name for name, move in moves.items() if move is not None and move.phase in RUNNING]
    at_home = moves.get(here[0])
    if not active and at_home is not None and at_home.phase == "left":  # the route has not been recorded yet
        active = [here[0]]
    for name in active:
        move = moves[name]
        assert move is not None
        if to not in (None, move.to_shard):
            raise MoveRefused(
                f"{source} is being moved to {move.to_shard}: finish it with `oncehook shards move {source} --to "
                f"{move.to_shard}`, or undo it with --abort"
            )
        return Plan(name, move.to_shard, move.phase, route)
    arriving = next((move for move in moves.values() if move is not None and move.phase == "arriving"), None)
    new = to or (arriving.to_shard if arriving is not None else None)
    if new is None:
        raise MoveRefused(f"{source} is not being moved")
    if new not in stores:
        raise MoveRefused(f"there is no shard {new}; the shards are {', '.join(stores)}")
    if new == here[0]:
        left = [name for name, move in moves.items() if move is not None and move.phase == "left" and name != new]
        for name in left:
            if any((await shards_of(stores[name]).counts(source)).values()):
                return Plan(name, new, "left", route)
        raise MoveRefused(f"{source} lives in {new} already")
    return Plan(here[0], new, None, route)


def shards_of(store: Store) -> ShardStore:
    assert store.shards is not None
    return store.shards
