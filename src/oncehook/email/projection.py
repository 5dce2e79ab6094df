"""The projection of email events: facts, status and suppressions, written in the transaction of the events' handler."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from oncehook.email import status, suppress
from oncehook.email.event import AHEAD
from oncehook.email.events import READERS, normalise
from oncehook.email.reading import form_fields
from oncehook.email.suppress import Policy
from oncehook.handlers.event import BaseEvent
from oncehook.model.errors import ConfigurationError
from oncehook.providers.expressions import NotReadable, TooDeep, index_text, parse
from oncehook.store.transaction import Transaction

BATCH = 200
"""How many events are projected in one transaction where the user has no handler for them."""


class EmailProjection:
    """The email tables, derived from the events of sources with `email = true`."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._sources: dict[str, bool] = {}  # name → whether its ids are a natural key of the user's own

    def add(self, source: str, provider: str, *, natural: bool) -> None:
        if provider not in READERS:
            raise ConfigurationError(
                f"sources.{source}.email: no email events of {provider} are known here; known are {', '.join(READERS)}"
            )
        self._sources[source] = natural

    def __contains__(self, source: str) -> bool:
        return source in self._sources

    async def project(self, events: Sequence[BaseEvent], transaction: Transaction) -> None:
        """Record the facts of these events, and update status and suppressions. A known fact changes nothing."""
        facts = [fact for event in events if event.source in self._sources for fact in self._facts(event)]
        if facts:
            new = await status.record(transaction, facts)
            if new:
                await suppress.suppress(transaction, new, self.policy)

    def _facts(self, event: BaseEvent) -> list[status.Fact]:
        found = normalise(event.provider, payload_of(event), event_id=event.id)
        natural = self._sources[event.source]
        facts = []
        for one in found:
            if one.recipient is not None and not self.policy.case_sensitive and not one.recipient.islower():
                one = msgspec.structs.replace(one, recipient=one.recipient.lower())
            told = _believable(event, one.occurred_at, event.occurred_at)
            fact = status.fact_of(one, event.source, event.provider, event.receipt, told)
            if natural:
                own = event.id if len(found) == 1 else f"{event.id}|{fact.recipient}"
                fact = status.renamed(fact, index_text(own) or event.id)
            facts.append(fact)
        return facts


def _believable(event: BaseEvent, *times: datetime | None) -> datetime:
    """The first time that may be; else when it arrived, which never changes.

    A clock far ahead would win every comparison for ever: no later event could follow on it, and nobody could lift what
    it suppresses.
    """
    latest = event.received_at + AHEAD
    return next((time for time in times if time is not None and time <= latest), event.received_at)


async def project_only(events: list[BaseEvent]) -> None:
    """The handler of events that have no other: their projection does all of it."""


def payload_of(event: BaseEvent) -> Any:
    """The event as plain data. An element out of a form's field is JSON, whatever the form's own type says.

    A form's repeated field is the list of its values.
    """
    if event.raw.lstrip()[:1] == b"{":
        try:
            return parse(event.raw)
        except (NotReadable, TooDeep):
            return None
    return form_fields(event.raw) if event._is_form else event.payload
