"""Shards: the identity of each database, the routes of sources, and the rows that a move copies.

Only PostgreSQL implements `ShardStore`.
"""

from collections.abc import Sequence
from typing import Protocol

from oncehook.model.errors import OncehookError
from oncehook.model.rows import QueryRow

IDS_PER_SHARD = 10**13
"""The ids of a shard begin at its number times this, so that ids of two shards never clash."""


class Shard(QueryRow, frozen=True):
    """The name and the number of a shard."""

    name: str
    number: int


class Move(QueryRow, frozen=True):
    """The state of a move in one of its two databases. `cursors` is JSON: how far the copy is."""

    source: str
    phase: str
    from_shard: str
    to_shard: str
    cursors: str = "{}"
    has_paused: bool = False
    frozen_at: str | None = None


class MoveChanged(OncehookError):
    """Another process has continued, finished or aborted the move. Nothing was written."""


class Route(QueryRow, frozen=True):
    """The shard of a source that was moved, or the shards over which it is spread, and how often it was changed."""

    source: str
    shard: str
    number: int


class MoveChange(QueryRow, frozen=True):
    """A row that changed during a move: a receipt, an effect, or an entity as JSON."""

    id: int
    kind: str
    key: str


class ShardFigures(QueryRow, frozen=True):
    """The number of receipts in a shard, and the lag of its oldest due event in seconds."""

    receipts: int
    lag: float


class ShardStore(Protocol):
    """One database of an inbox with shards. Methods that take a source copy or change rows of that source only."""

    # -- identity and routes

    async def here(self) -> Shard | None:
        """Return the shard that this database is, or None if it is none yet."""

    async def number_of(self, name: str) -> int:
        """Return the number of a shard. `main` gives each new name the next number."""

    async def become(self, name: str, number: int) -> None:
        """Make this database the shard `name`, and begin its ids. Raises ConfigurationError if it is another one.

        A database that has events already can only become `main`.
        """

    async def routes(self) -> dict[str, Route]:
        """Return the route of each source that was moved, and of each source whose tenants are spread."""

    async def put_route(self, source: str, shard: str, actor: str, *, number: int) -> bool:
        """Record the shard of a source, in `main`. Every process reads it within a second.

        Returns False, and changes nothing, if the route was changed since it had this `number`; 0 means no route.
        """

    async def figures(self) -> ShardFigures:
        """Count the receipts that live in this shard, and measure its lag."""

    # -- the phases of a move

    async def move_of(self, source: str) -> Move | None:
        """Return the move of a source, or None. A source that has left this shard keeps its row."""

    async def moves(self) -> list[Move]:
        """Return all moves of this database."""

    async def begin(self, move: Move, actor: str) -> bool:
        """Record a move and guard its source. In the phase `copying`, also record changes; `arriving` also pauses it.

        Waits a short time for running transactions, and raises StoreUnavailable if they do not end. Returns False, and
        changes nothing, if the source is already here, or has left.
        """

    async def set_phase(self, source: str, phase: str, actor: str) -> bool:
        """Change the phase. `draining` pauses the source. Waits for transactions that have read the earlier phase.

        Returns False, and changes nothing, if the move is not in a phase that comes before.
        """

    async def open(self, source: str, pause_from: "ShardStore | None") -> bool:
        """Let processes write the source. A pause by a person is taken over from `pause_from`.

        Returns False, and changes nothing, if the source has left, or if no move is in progress.
        """

    async def discard(self, source: str) -> None:
        """Forget a move to this shard that was aborted."""

    async def unwatch(self, source: str) -> None:
        """Drop the triggers of a move that has ended. Where the source has left, the guard stays."""

    async def copy_keys(self, target: "ShardStore") -> None:
        """Record in `target` which keys may have encrypted rows."""

    async def write_keys(self, rows: str) -> None:
        """Record keys that another shard has read. Used by `copy_keys`."""

    async def put_cursors(self, source: str, cursors: str) -> None:
        """Record what has been copied."""

    async def running(self, source: str) -> int:
        """Count the handlers and effects that run."""

    # -- the rows of a move

    async def last(self, source: str) -> dict[str, int]:
        """Return the greatest ids of `receipts` and `effects`."""

    async def receipts(self, source: str, after: int, until: int, limit: int) -> list[tuple[int, int]]:
        """Return the next receipts by id, up to `until`, each with the size of its body."""

    async def copy_receipts(self, source: str, ids: Sequence[int], target: "ShardStore") -> None:
        """Replace these receipts in `target`, with their payloads, keys, attempts, duplicates and no-ops."""

    async def effects(self, source: str, after: int, until: int, limit: int) -> list[int]:
        """Return the next effects by id, up to `until`."""

    async def unfinished_effects(self, source: str) -> list[int]:
        """Return the effects that are not done or failed."""

    async def copy_effects(self, source: str, ids: Sequence[int], target: "ShardStore", *, finished: bool) -> None:
        """Replace these effects in `target`. With `finished`, the others are deleted there, so that no relay waits."""

    async def entities(self, source: str, after: Sequence[str], limit: int) -> list[list[str]]:
        """Return the keys of the next entities."""

    async def copy_entities(self, source: str, keys: Sequence[Sequence[str]], target: "ShardStore") -> None:
        """Replace these entities in `target`."""

    async def write(self, source: str, kind: str, keys: str, rows: str, days: Sequence[object]) -> None:
        """Replace rows that another shard has read, in one transaction. Used by the `copy_…` methods."""

    async def changes(self, source: str, limit: int) -> list[MoveChange]:
        """Return the oldest recorded changes."""

    async def delete_changes(self, source: str, ids: Sequence[int]) -> None:
        """Delete changes that were copied."""

    async def digests(self, source: str, ids: Sequence[int], *, effects: bool = False) -> dict[int, str]:
        """Return a digest of each receipt with all its rows, or of each effect."""

    async def counts(self, source: str) -> dict[str, int]:
        """Count the rows of a source by table."""

    async def shared_scopes(self, source: str, scopes: Sequence[str] | None = None) -> list[str]:
        """Return the scopes of effects that other sources use too: of the source's effects here, or of `scopes`."""

    async def effect_scopes(self, source: str) -> list[str]:
        """Return the scopes of the source's effects."""

    async def delete_leftovers(self, source: str, limit: int, *, unfinished: bool) -> int:
        """Delete up to `limit` receipts, effects and entities each. Returns how many rows were chosen."""
