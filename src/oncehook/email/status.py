"""Status per message and recipient: a pure fold of the facts, the same in any order and however often they are told.

The delivery state is that of the greatest fact by (terminal, occurred-at, rank, key). A hard bounce, a complaint, a
rejection and a failure are terminal: a `delivered` that comes late cannot hide them. A soft bounce is not, because its
message may still be delivered; there the provider's clock decides. Opens and clicks are kept beside the state and never
hide it.
"""

from collections.abc import Callable, Iterable, Sequence
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
"""The types that are a state of delivery; of two in the same second the later one here counts."""

TERMINAL = frozenset({EmailType.BOUNCED, EmailType.FAILED, EmailType.REJECTED, EmailType.COMPLAINED})

Key: TypeAlias = tuple[str, str, str]
"""(message id, recipient, source). The recipient is empty where the provider does not say which."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A row of `webhook_email_events`. Times are texts, RFC 3339 with microseconds, so that they compare as times."""

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
    def of(self) -> Key:
        return self.message_id, self.recipient, self.source

    @property
    def at(self) -> tuple[str, str]:
        return self.source, self.key


class Status(msgspec.Struct, kw_only=True):
    """A row of `webhook_email_status`: what is known of a message and a recipient."""

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

    @property
    def of(self) -> Key:
        return self.message_id, self.recipient, self.source

    def take(self, fact: Fact) -> None:
        """Add a fact. The order in which facts are taken makes no difference, nor does taking one twice."""
        at = fact.occurred_at
        self.last_at = max(self.last_at, at)
        place = place_of(fact)
        if place and (place, fact.key) > (self.place, self.event_key):
            self.status, self.bounce, self.reason = fact.type, fact.bounce, fact.reason
            self.occurred_at, self.place, self.event_key = at, place, fact.key
        if fact.type == EmailType.DELIVERED:
            self.delivered_at = min(self.delivered_at or at, at)
        elif fact.type == EmailType.OPENED:
            self.opened_at = min(self.opened_at or at, at)
        elif fact.type == EmailType.CLICKED:
            self.clicked_at = min(self.clicked_at or at, at)


def place_of(fact: Fact) -> str:
    """Where a fact stands in the order of states, as a text that sorts so; empty if it is no state of delivery."""
    rank = RANK.get(fact.type)  # type: ignore[call-overload]  # an EmailType is its text
    if rank is None:
        return ""
    terminal = fact.type in TERMINAL and fact.bounce != SOFT
    return f"{terminal:d} {fact.occurred_at} {rank}"


def fold(facts: Iterable[Fact]) -> dict[Key, Status]:
    """The status of every message and recipient that the facts are about."""
    found: dict[Key, Status] = {}
    for fact in facts:
        if fact.message_id:
            status = found.get(fact.of)
            if status is None:
                status = found[fact.of] = Status(
                    message_id=fact.message_id, recipient=fact.recipient, source=fact.source
                )
            status.take(fact)
    return found


def fact_of(event: EmailEvent, source: str, provider: str, receipt: int, occurred_at: datetime) -> Fact:
    """The row of an email event, at the time that counts for it."""
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


def renamed(fact: Fact, key: str) -> Fact:
    """The same fact under another key."""
    return msgspec.structs.replace(fact, key=key)


_encode = msgspec.json.Encoder().encode


# -- the tables -----------------------------------------------------------------------------------------------------


async def record(transaction: Transaction, facts: Sequence[Fact]) -> list[Fact]:
    """Store the facts that are new and fold them into the statuses; returns those that were."""
    once = {fact.at: fact for fact in reversed(facts)}
    rows = await ask(transaction, "email_insert_events", [once[at] for at in sorted(once)])
    new = [once[source, key] for source, key in rows]
    statuses = fold(new)
    if statuses:
        await ask(transaction, "email_update_status", [statuses[key] for key in sorted(statuses)])
    return new


async def ask(transaction: Transaction, name: str, given: Any) -> list[tuple[Any, ...]]:
    """One of the statements about email, in a transaction; times in its rows are texts on either database."""
    rows = await transaction.run_query(lambda sql: sql[name], _encode(given).decode())
    return [tuple(rfc3339(one) if isinstance(one, datetime) else one for one in row) for row in rows]


Told: TypeAlias = Callable[[int], None]
"""Is told how many were looked at so far."""

Difference: TypeAlias = dict[str, Any]


async def check_page(
    transaction: Transaction, after: Key, limit: int, *, mend: bool
) -> tuple[Key | None, int, list[Difference]]:
    """Refold the next messages and compare: where to go on, how many were looked at, and what differed.

    The rows are held before the facts are read, so whoever folds a new fact meanwhile comes before or after.
    """
    keys = await ask(transaction, "email_status_keys", {"after": after, "limit": limit})
    if not keys:
        return None, 0, []
    named = [dict(zip(("message_id", "recipient", "source"), key, strict=True)) for key in keys]
    kept = {row[:3]: row for row in await ask(transaction, "email_lock_status", named)}
    facts = [
        Fact(**dict(zip(FACT_COLUMNS, row, strict=True)))
        for row in await ask(transaction, "email_status_events", named)
    ]
    folded = fold(facts)
    made = {key: tuple(getattr(status, name) for name in STATUS_COLUMNS) for key, status in folded.items()}
    wrong = sorted(key for key in {*kept, *made} if kept.get(key) != made.get(key))
    if wrong and mend:
        await _drop(transaction, wrong)
        await _put(transaction, [folded[key] for key in wrong if key in folded])
    differences = [_difference(key, kept.get(key), made.get(key)) for key in wrong]
    last = keys[-1]
    return (last[0], last[1], last[2]), len(keys), differences


FACT_COLUMNS = ("message_id", "recipient", "source", "key", "type", "bounce", "reason", "occurred_at")
STATUS_COLUMNS = Status.__struct_fields__


async def _drop(transaction: Transaction, keys: Sequence[Any]) -> None:
    named = [dict(zip(("message_id", "recipient", "source"), key, strict=True)) for key in keys]
    await ask(transaction, "email_drop_status", named)


async def _put(transaction: Transaction, statuses: Sequence[Status]) -> None:
    if statuses:
        await ask(transaction, "email_update_status", statuses)


def _difference(key: Any, kept: Any, made: Any) -> Difference:
    message_id, recipient, source = key
    found = {"kept": kept, "folded": made}
    values = {name: None if row is None else row[STATUS_COLUMNS.index("status")] for name, row in found.items()}
    return {"message_id": message_id, "recipient": recipient or None, "source": source, **values}
