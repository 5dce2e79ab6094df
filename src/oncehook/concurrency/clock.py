"""The only module that reads the system time.

Leases, retries and retention use the database's clock. This clock is for everything else: timestamp windows of
signatures, deadlines, and times that are shown to a person.
"""

import time
from datetime import UTC, datetime


class Clock:
    """The system clock. Tests override `now` to move the time."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go backwards, for measuring a duration."""
        return time.monotonic()

    def datetime(self) -> datetime:
        """The same instant as `now`, as an aware datetime in UTC."""
        return datetime.fromtimestamp(self.now(), UTC)


SYSTEM = Clock()
