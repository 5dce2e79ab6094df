"""Imports the ids of events that another package has handled, so that they are duplicates here."""

import hashlib
from collections.abc import Iterable

from oncehook.inbox import Inbox
from oncehook.model.claim import Claim
from oncehook.model.errors import ConfigurationError
from oncehook.model.states import State
from oncehook.providers.expressions import index_text

BATCH = 500
"""How many receipts one transaction inserts."""


async def import_event_ids(inbox: Inbox, source: str, events: Iterable[tuple[str, str | None]], reason: str) -> int:
    """Record the ids and types of events that were handled elsewhere. Returns how many were new.

    A later delivery of such an event is a duplicate. Its receipt is `ignored`, with the reason. An id that is recorded
    already is left as it is, so you can call this again after an interruption.
    """
    if source not in inbox._runtime.sources:
        raise ConfigurationError(f"there is no source {source}: the sources are {', '.join(inbox._runtime.sources)}")
    provider = inbox._runtime.sources[source].provider_name
    pending: list[Claim] = []
    new = 0
    async with inbox._runtime.opened_store() as store:

        async def insert() -> int:
            claims = sorted({claim.event_id: claim for claim in pending}.values(), key=lambda claim: claim.event_id)
            pending.clear()
            return sum(claimed.fresh for claimed in await store.claims.insert(claims)) if claims else 0

        for event_id, type_ in events:
            pending.append(_claim(source, provider, event_id, type_, reason))
            if len(pending) == BATCH:
                new += await insert()
        return new + await insert()


def _claim(source: str, provider: str, event_id: str, type_: str | None, reason: str) -> Claim:
    return Claim(
        source=source,
        provider=provider,
        event_id=index_text(event_id) or "",
        type=index_text(type_) if type_ else None,
        object_id=None,
        occurred_at=None,
        delivery_id=None,
        correlation_id=None,
        status=State.IGNORED,
        last_error=reason,
        fingerprint=hashlib.sha256(b"").digest(),
        body=b"",
        headers="{}",
    )
