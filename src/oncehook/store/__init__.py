"""What the house asks of a database. One behavioural suite, tests/conformance, holds every store to it."""

from collections.abc import Sequence
from typing import Any, Protocol

from oncehook.errors import ConfigurationError
from oncehook.receipt import Claim, Claimed, Duplicate, Filter, Payload, Receipt
from oncehook.settings import Settings

DUPLICATES_KEPT = 100
"""How many duplicates of one receipt are noted, and as many again with another body."""


class Store(Protocol):
    """The verbs. Times are the database's own; every text that comes in is already capped and clean."""

    parallel_claims: int
    """How many `claim` calls may usefully be under way at once."""

    async def open(self) -> None:
        """Connect, check that commits are durable, and bring the schema up to date if the settings say so."""

    async def close(self) -> None:
        """Finish what is under way and disconnect."""

    async def ping(self) -> None:
        """Return if a claim could be committed now, else raise StoreUnavailable."""

    async def claim(self, claims: Sequence[Claim]) -> list[Claimed]:
        """Insert all that are new in one durable transaction; return what became of each, in their order.

        No two of `claims` have the same (source, event_id). When this returns, the commit is on disk. It raises
        RowRefused if the database refuses a row for what is in it, StoreUnavailable if nothing can be recorded now.
        """

    async def note_duplicates(self, duplicates: Sequence[Duplicate]) -> None:
        """Append deliveries of events that were here before, at most DUPLICATES_KEPT of a kind per receipt."""

    async def find(self, wanted: Filter, *, limit: int, before: tuple[str, int] | None = None) -> list[Receipt]:
        """Receipts that match, newest first; `before` is (received_at, receipt) of the last one of a page."""

    async def get(self, receipt: int) -> Receipt | None:
        """One receipt."""

    async def payload(self, receipt: int) -> Payload | None:
        """What arrived, or None if it was pruned or never there."""

    async def duplicates(self, receipt: int) -> list[dict[str, Any]]:
        """The noted duplicates of a receipt, oldest first."""

    async def counts(self) -> list[dict[str, Any]]:
        """Per source and status: how many receipts; per source: how many noted duplicates and changed bodies."""

    async def pending_migrations(self) -> list[tuple[int, str, str]]:
        """(number, name, SQL) of the migrations that are not applied yet."""

    async def migrate(self) -> list[str]:
        """Apply them under a lock, each in a transaction; return the names of those that were."""


def make_store(settings: Settings) -> Store:
    """The store of `settings.database`, not opened yet."""
    address = settings.database
    if address.startswith("sqlite:"):
        from oncehook.store.sqlite import SqliteStore

        return SqliteStore(settings)
    if address.startswith(("postgresql://", "postgres://")):
        try:
            from oncehook.store.postgres import PostgresStore
        except ModuleNotFoundError:
            raise ConfigurationError("PostgreSQL needs its driver: pip install 'oncehook[postgres]'") from None
        return PostgresStore(settings)
    scheme = address.partition(":")[0]
    raise ConfigurationError(
        f"database: {scheme}: is not a database Oncehook knows; use sqlite:///file.db or postgresql://user@host/db"
    )
