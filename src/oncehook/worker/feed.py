"""Where a worker gets its leases from: the database, or a queue that names receipts."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from oncehook.model.lease import Leased, Settled
from oncehook.model.patterns import Handled
from oncehook.store.protocols import LeaseStore


class Feed(Protocol):
    """Leases the receipts of one worker."""

    def room(self, wanted: int) -> int:
        """How many receipts to lease now, up to `wanted`. 0: there is nothing to lease."""

    def seconds_left(self) -> float:
        """In how many seconds to look for receipts again without a wake-up."""

    def wake(self) -> None:
        """Receipts may be due in the database."""

    async def take(self, limit: int, *, rescued: bool = False) -> list[Leased]:
        """Lease up to `limit` receipts. With `rescued`, only receipts whose last worker died."""

    def settled(self, leased: Leased, settled: Settled, landed: bool) -> None:
        """An attempt has ended. `landed` is False if its lease was lost."""

    def postponed(self, receipts: Iterable[int], after: float) -> None:
        """These receipts were released without an attempt, and are due in `after` seconds."""

    def ended(self, receipts: Iterable[int]) -> None:
        """The worker no longer has these receipts. Those that were not settled are released, or their leases expire."""


@dataclass
class DatabaseFeed:
    """Leases the receipts that are due, in the order in which they are due."""

    leases: LeaseStore
    worker: str
    lease_seconds: float
    poll: float  # seconds between two leases without a wake-up, which is only a hint
    skip_failed: Collection[str]  # sources whose dead letters do not block their serial keys
    handled: Callable[[], Handled]  # this process leases only these events

    def room(self, wanted: int) -> int:
        return wanted

    def seconds_left(self) -> float:
        return self.poll

    def wake(self) -> None:
        """Do nothing: each `take` queries the database."""

    async def take(self, limit: int, *, rescued: bool = False) -> list[Leased]:
        handled = self.handled()
        if not handled:
            return []
        return await self.leases.take(
            limit, self.lease_seconds, self.worker, rescued=rescued, skip_failed=self.skip_failed, handled=handled
        )

    def settled(self, leased: Leased, settled: Settled, landed: bool) -> None:
        """Do nothing: the receipt has its new state."""

    def postponed(self, receipts: Iterable[int], after: float) -> None:
        """Do nothing, as above."""

    def ended(self, receipts: Iterable[int]) -> None:
        """Do nothing, as above."""
