"""The only reader of time in the process.

Leases, retries and horizons use the database's clock. This one is for what has no database: the
timestamp windows of signatures, deadlines, and what a person is shown.
"""

import time
from datetime import UTC, datetime


class Clock:
    """The machine's clock. Tests move one of their own by overriding `now`."""

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
