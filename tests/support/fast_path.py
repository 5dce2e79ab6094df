"""An inbox with the fast path of duplicates, and the number of claims that reached its database."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from oncehook import Inbox
from oncehook.model.claim import Claim, Claimed
from oncehook.observability import metrics
from oncehook.testing import DeliveryResponse, deliver
from tests.support.events import STRIPE_SECRET


class CountedClaims:
    """A real claim store that counts the claims which reach it."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.parallel = store.parallel
        self.insert_or_find = store.insert_or_find
        self.note_duplicates = store.note_duplicates
        self.count = 0

    async def insert(self, claims: Sequence[Claim]) -> list[Claimed]:
        self.count += len(claims)
        results: list[Claimed] = await self.store.insert(claims)
        return results


class FastInbox:
    """A running inbox with a Stripe source."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.claims = CountedClaims(inbox._runtime.store.claims)
        inbox._runtime.reception.claimer.store = self.claims
        self._hits_before = total_hits()

    async def send(self, event_id: str, **options: Any) -> DeliveryResponse:
        """Deliver an event of this id, with the same body each time unless `options` has another."""
        payload = {"id": event_id, "object": "event", "type": "invoice.paid", **options}
        return await deliver(self.inbox, "stripe", payload)

    @property
    def hits(self) -> float:
        """How many deliveries were answered without a claim."""
        return total_hits() - self._hits_before


def total_hits() -> float:
    return sum(value for key, value in metrics.TALLY.counters.items() if key[0] == "oncehook_fast_path_hits_total")


@asynccontextmanager
async def fast_inbox(database: str, **settings: Any) -> AsyncIterator[FastInbox]:
    inbox = Inbox(database, **{"worker": False, "poll": "50ms", **settings})
    inbox.source("stripe", secrets=[STRIPE_SECRET])
    async with inbox.lifespan():
        yield FastInbox(inbox)
