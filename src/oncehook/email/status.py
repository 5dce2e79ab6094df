"""The status per message and recipient. It is a pure function of the facts, whatever their order or repetition.

The fact with the greatest (terminal, occurred-at, rank, key) gives the status. A hard bounce, a complaint, a rejection
and a failure are terminal: a later `delivered` does not hide them. A soft bounce is not terminal, because its message
may still be delivered; there the provider's clock decides. Opens and clicks are separate columns and never change the
status.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from oncehook.email.event import SOFT, EmailEvent, EmailType
from oncehook.model.timestamps import rfc3339
from oncehook.store.transaction import Transaction

RANK = {
    EmailType.QUEUED: 1,
    EmailType.SENT: 2,
    EmailType.DEFERRED: 3,
    EmailType.DELIVERED: 4,
    EmailType.BOUNCED: 5,
    EmailType.FAILED: 6,
    EmailType.REJECTED: 7,
    EmailType.COMPLAINED: 8,
}
"""The types that are a status. Of two facts with the same time, the one with the higher rank counts."""

TERMINAL = frozenset({EmailType.BOUNCED, EmailType.FAILED, EmailType.REJECTED, EmailType.COMPLAINED})

Key: TypeAlias = tuple[str, str, str]
"""(message id, recipient, source). The recipient is empty if the provider does not name it."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `webhook_email_events`. Times are RFC 3339 texts with microseconds, so that they compare as times."""

    source: str
    key: str
    type: str
    message_id: str
    recipient: str
    occurred_at: str
    bounce: str | None = None
    reason: str | None = None
    provider: str = ""
    domain: str = ""
    tags: str = "[]"
    metadata: str = "{}"
    receipt_id: int = 0

    @property
    def status_key(self) -> Key:
        return self.message_id, self.recipient, self.source

    @property
    def identity(self) -> tuple[str, str]:
        return self.source, self.key


class Status(msgspec.Struct, kw_only=True):
    """A row of `webhook_email_status`: the status of a message for one recipient."""

    message_id: str
    recipient: str
    source: str
    status: str | None = None
    bounce: str | None = None
    reason: str | None = None
    occurred_at: str | None = None
    place: str = ""
    event_key: str = ""
    delivered_at: str | None = None
    opened_at: str | None = None
    clicked_at: str | None = None
    last_at: str = ""

    def add(self, fact: Fact) -> None:
        """Add a fact. Neither the order of facts nor a repeated fact makes a difference."""
        at = fact.occurred_at
        self.last_at = max(self.last_at, at)
        place = sort_key(fact)
        if place and (place, fact.key) > (self.place, self.event_key):
            self.status, self.bounce, self.reason = fact.type, fact.bounce, fact.reason
            self.occurred_at, self.place, self.event_key = at, place, fact.key
        if fact.type == EmailType.DELIVERED:
            self.delivered_at = min(self.delivered_at or at, at)
        elif fact.type == EmailType.OPENED:
            self.opened_at = min(self.opened_at or at, at)
        elif fact.type == EmailType.CLICKED:
            self.clicked_at = min(self.clicked_at or at, at)


def sort_key(fact: Fact) -> str:
    """Return a text by which facts sort in the order of statuses, or "" if the fact is not a status."""
    rank = RANK.get(fact.type)  # type: ignore[call-overload]  # an EmailType is a str
    if rank is None:
        return ""
    terminal = fact.type in TERMINAL and fact.bounce != SOFT
    return f"{terminal:d} {fact.occurred_at} {rank}"


def derive_statuses(facts: Iterable[Fact]) -> dict[Key, Status]:
    """Derive the status of every message and recipient from facts."""
    statuses: dict[Key, Status] = {}
    for fact in facts:
        if fact.message_id:
            status = statuses.get(fact.status_key)
            if status is None:
                status = statuses[fact.status_key] = Status(
                    message_id=fact.message_id, recipient=fact.recipient, source=fact.source
                )
            status.add(fact)
    return statuses


def fact_of(event: EmailEvent, source: str, provider: str, receipt: int, occurred_at: datetime) -> Fact:
    """Return the row of an email event that occurred at the given time."""
    return Fact(
        source=source,
        key=event.key,
        provider=provider,
        type=event.type.value,
        bounce=event.bounce,
        message_id=event.message_id or "",
        recipient=event.recipient or "",
        domain=event.domain or "",
        occurred_at=rfc3339(occurred_at) or "",
        reason=event.reason,
        tags=_encode(event.tags).decode(),
        metadata=_encode(event.metadata).decode(),
        receipt_id=receipt,
    )


_encode = msgspec.json.Encoder().encode


# -- the tables -----------------------------------------------------------------------------------------------------


async def record(transaction: Transaction, facts: Sequence[Fact]) -> list[Fact]:
    """Store new facts, update the statuses, and return the facts that were new."""
    distinct = {fact.identity: fact for fact in reversed(facts)}
    rows = await run_query(transaction, "email_insert_events", [distinct[identity] for identity in sorted(distinct)])
    new = [distinct[source, key] for source, key in rows]
    statuses = derive_statuses(new)
    if statuses:
        await run_query(transaction, "email_update_status", [statuses[key] for key in sorted(statuses)])
    return new


async def run_query(transaction: Transaction, name: str, parameters: Any) -> list[tuple[Any, ...]]:
    """Run a named statement about email in a transaction. Times in its rows are texts on both databases."""
    rows = await transaction.run_query(lambda sql: sql[name], _encode(parameters).decode())
    return [tuple(rfc3339(value) if isinstance(value, datetime) else value for value in row) for row in rows]


Difference: TypeAlias = dict[str, Any]


async def check_page(
    transaction: Transaction, after: Key, limit: int, *, fix: bool
) -> tuple[Key | None, int, list[Difference]]:
    """Derive the next statuses again and compare. Returns the next cursor, the number of rows, and the differences.

    The rows are locked before the facts are read, so a concurrent projection comes before or after.
    """
    keys = await run_query(transaction, "email_status_keys", {"after": after, "limit": limit})
    if not keys:
        return None, 0, []
    key_rows = [dict(zip(("message_id", "recipient", "source"), key, strict=True)) for key in keys]
    stored = {row[:3]: row for row in await run_query(transaction, "email_lock_status", key_rows)}
    facts = [
        Fact(**dict(zip(FACT_COLUMNS, row, strict=True)))
        for row in await run_query(transaction, "email_status_events", key_rows)
    ]
    statuses = derive_statuses(facts)
    derived = {key: tuple(getattr(status, name) for name in STATUS_COLUMNS) for key, status in statuses.items()}
    wrong = sorted(key for key in {*stored, *derived} if stored.get(key) != derived.get(key))
    if wrong and fix:
        await _delete(transaction, wrong)
        await _write(transaction, [statuses[key] for key in wrong if key in statuses])
    differences = [_difference(key, stored.get(key), derived.get(key)) for key in wrong]
    last = keys[-1]
    return (last[0], last[1], last[2]), len(keys), differences


FACT_COLUMNS = ("message_id", "recipient", "source", "key", "type", "bounce", "reason", "occurred_at")
STATUS_COLUMNS = Status.__struct_fields__


async def _delete(transaction: Transaction, keys: Sequence[Any]) -> None:
    key_rows = [dict(zip(("message_id", "recipient", "source"), key, strict=True)) for key in keys]
    await run_query(transaction, "email_drop_status", key_rows)


async def _write(transaction: Transaction, statuses: Sequence[Status]) -> None:
    if statuses:
        await run_query(transaction, "email_update_status", statuses)


def _difference(key: Any, stored: Any, derived: Any) -> Difference:
    message_id, recipient, source = key
    rows = {"kept": stored, "folded": derived}
    values = {name: None if row is None else row[STATUS_COLUMNS.index("status")] for name, row in rows.items()}
    return {"message_id": message_id, "recipient": recipient or None, "source": source, **values}
