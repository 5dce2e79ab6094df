"""A clock that stands still until a test moves it, and a database whose clock is set back."""

from oncehook.concurrency.clock import Clock
from tests.support.servers import run_sql


class ManualClock(Clock):
    """Shows the same time to every reader. `advance` moves it."""

    def __init__(self, at: float = 1_000.0) -> None:
        self.at = at

    def advance(self, seconds: float) -> None:
        self.at += seconds

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


COLUMNS = {
    "webhook_receipts": ("received_at", "leased_at", "lease_until", "next_attempt_at", "replayed_at", "unhandled_at"),
    "webhook_effects": ("created_at", "leased_at", "lease_until", "next_attempt_at"),
    "webhook_pauses": ("paused_at", "ends_at"),
    "webhook_workers": ("registered_at", "seen_at"),
    "webhook_leaders": ("taken_at", "expires_at"),
}
MOVED = {
    "sqlite": "strftime('%Y-%m-%dT%H:%M:%f000Z', {name}, '{seconds:+} seconds')",
    "postgresql": "{name} + interval '{seconds} seconds'",
}


def set_clock_back(database: str, seconds: int = 3600) -> None:
    """Set the database's clock back, or ahead with negative seconds: move the recorded times the other way."""
    moved = MOVED[database.partition(":")[0]]
    for table, columns in COLUMNS.items():
        changes = ", ".join(f"{name} = {moved.format(name=name, seconds=seconds)}" for name in columns)
        run_sql(database, f"UPDATE {table} SET {changes}")
