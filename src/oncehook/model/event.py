"""The facts of an event, which its claim, its lease and its receipt share."""

from datetime import datetime
from typing import Any

import msgspec


class EventFacts(msgspec.Struct, kw_only=True, frozen=True):
    """The columns of an event that come from the delivery. All other columns come from Oncehook."""

    source: str
    provider: str
    event_id: str
    type: str | None
    object_id: str | None
    occurred_at: datetime | None
    delivery_id: str | None
    correlation_id: str | None


def facts_of(event: EventFacts) -> dict[str, Any]:
    """Return the facts by name, to build another record of the same event."""
    return {name: getattr(event, name) for name in EventFacts.__struct_fields__}
