"""The facts of an event: declared once, shared by its claim, its lease and its receipt."""

from datetime import datetime
from typing import Any

import msgspec


class EventFacts(msgspec.Struct, kw_only=True, frozen=True):
    """What a delivery says about its event. The rest of its columns say what Oncehook did with it."""

    source: str
    provider: str
    event_id: str
    type: str | None
    object_id: str | None
    occurred_at: datetime | None
    delivery_id: str | None
    correlation_id: str | None


def facts_of(event: EventFacts) -> dict[str, Any]:
    """The facts by name, for another record of the same event."""
    return {name: getattr(event, name) for name in EventFacts.__struct_fields__}
