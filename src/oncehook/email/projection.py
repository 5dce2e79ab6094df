"""Projects email events to facts, status and suppressions, in the transaction of the events' handler."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from oncehook.email import status, suppressions
from oncehook.email.event import MAX_CLOCK_AHEAD
from oncehook.email.payload_values import form_fields
from oncehook.email.readers import READERS, normalise
from oncehook.email.suppressions import Policy
from oncehook.handlers.event import BaseEvent
from oncehook.model.errors import ConfigurationError
from oncehook.providers.expressions import NotReadable, TooDeep, index_text, parse
from oncehook.store.transaction import Transaction

BATCH = 200
"""Events per transaction if the user has no handler for them."""


class EmailProjection:
    """The email tables, derived from the events of sources with `email = true`."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._sources: dict[str, bool] = {}  # name → whether its event ids are a natural key that the user configured

    def add(self, source: str, provider: str, *, natural: bool) -> None:
        if provider not in READERS:
            raise ConfigurationError(
                f"sources.{source}.email: {provider} has no email events; these have: {', '.join(READERS)}"
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
                await suppressions.suppress(transaction, new, self.policy)

    def _facts(self, event: BaseEvent) -> list[status.Fact]:
        email_events = normalise(event.provider, payload_of(event), event_id=event.id)
        natural = self._sources[event.source]
        facts = []
        for email_event in email_events:
            recipient = email_event.recipient
            if recipient is not None and not self.policy.case_sensitive and not recipient.islower():
                email_event = msgspec.structs.replace(email_event, recipient=recipient.lower())
            occurred_at = _credible_time(event, email_event.occurred_at, event.occurred_at)
            fact = status.fact_of(email_event, event.source, event.provider, event.receipt, occurred_at)
            if natural:
                key = event.id if len(email_events) == 1 else f"{event.id}|{fact.recipient}"
                fact = msgspec.structs.replace(fact, key=index_text(key) or event.id)
            facts.append(fact)
        return facts


def _credible_time(event: BaseEvent, *times: datetime | None) -> datetime:
    """Return the first time that is not far in the future, or else the time of arrival, which never changes.

    A time far in the future would win every comparison: no later event could replace it, and no person could remove the
    suppression that it causes.
    """
    latest = event.received_at + MAX_CLOCK_AHEAD
    return next((time for time in times if time is not None and time <= latest), event.received_at)


async def project_only(events: list[BaseEvent]) -> None:
    """Do nothing. This is the handler of email events without a user's handler: only their projection runs."""


def payload_of(event: BaseEvent) -> Any:
    """Return the event's payload as plain data.

    An element of a form field is JSON, whatever the content type of the form. A repeated form field is a list.
    """
    if event.raw.lstrip()[:1] == b"{":
        try:
            return parse(event.raw)
        except (NotReadable, TooDeep):
            return None
    return form_fields(event.raw) if event._is_form else event.payload
