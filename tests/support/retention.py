"""Helpers for tests of pruning: old events, and the events and payloads that remain."""

from oncehook.config.settings import Horizon
from oncehook.operations.prune import Pruned, prune
from oncehook.store.store import Store
from tests.support.events import Rows

DAY = 86400.0
KEEP_30 = [Horizon("stripe", 30 * DAY, 30 * DAY)]


def stored_events(rows: Rows) -> list[str]:
    """Return the ids of all stored events."""
    return [row[0] for row in rows("SELECT event_id FROM webhook_receipts ORDER BY event_id")]


def events_with_payload(rows: Rows) -> list[str]:
    """Return the ids of all events that still have their payload."""
    sql = "SELECT r.event_id FROM webhook_payloads p JOIN webhook_receipts r ON r.id = p.receipt_id ORDER BY 1"
    return [row[0] for row in rows(sql)]


def count_rows(rows: Rows, table: str) -> int:
    number: int = rows(f"SELECT count(*) FROM {table}")[0][0]
    return number


async def prune_now(store: Store, horizons: list[Horizon] = KEEP_30) -> Pruned:
    """Prune, and return what was deleted."""
    done = await prune(store, horizons)
    assert done is not None, "no other process may be pruning"
    return done
