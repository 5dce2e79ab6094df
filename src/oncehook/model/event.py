"""The facts of an event, which its claim, its lease and its receipt share."""

from datetime import datetime
from typing import Any

import msgspec

MAIN = "main"
"""The consumer of handlers without a consumer's name. Its receipt decides whether an event is new."""


class EventFacts(msgspec.Struct, kw_only=True, frozen=True):
    """The columns of an event that come from the delivery. All other columns come from Oncehook."""

    source: str
    tenant: str = ""  # the account of the source that the event belongs to; empty if the source has no tenants
    provider: str
    event_id: str
    type: str | None
    object_id: str | None
    occurred_at: datetime | None
    delivery_id: str | None
    correlation_id: str | None

    @property
    def scope(self) -> str:
        """The default scope of effects: the source, and the tenant if there is one."""
        return f"{self.source}/{self.tenant}" if self.tenant else self.source


class ConsumerFacts(EventFacts, kw_only=True, frozen=True):
    """An event as one consumer has it."""

    consumer: str = MAIN

    @property
    def consumer_scope(self) -> str:
        """The scope of what each consumer has for itself, such as entities and idempotency keys."""
        return self.scope if self.consumer == MAIN else f"{self.scope}@{self.consumer}"


def facts_of(event: EventFacts) -> dict[str, Any]:
    """Return the facts by name, to build another record of the same event."""
    return {name: getattr(event, name) for name in EventFacts.__struct_fields__}
