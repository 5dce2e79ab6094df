"""What tests of the work share: claims, and waiting for what the database or a handler shows."""

from typing import Any

from oncehook import Inbox, Retry
from tests.support.events import make_claim

QUICK = Retry(attempts=3, first=0.01, most=0.02)


async def claim(inbox: Inbox, *ids: str, **changes: Any) -> None:
    await inbox._runtime.store.claims.insert([make_claim(event_id, **changes) for event_id in sorted(ids)])
