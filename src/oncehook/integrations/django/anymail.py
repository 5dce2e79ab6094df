"""Sends Anymail's signal `tracking` for email events of Oncehook, so that its receivers continue to work."""

from typing import Any

from anymail.signals import AnymailTrackingEvent, RejectReason, tracking

from oncehook.email.event import EmailEvent, EmailType
from oncehook.email.projection import payload_of
from oncehook.email.readers import normalise
from oncehook.handlers.event import BaseEvent
from oncehook.integrations.django.instance import project

ESP_NAMES = {
    "brevo": "Brevo",
    "mailgun": "Mailgun",
    "mailjet": "Mailjet",
    "mandrill": "Mandrill",
    "postmark": "Postmark",
    "resend": "Resend",
    "sendgrid": "SendGrid",
    "ses": "Amazon SES",
    "sparkpost": "SparkPost",
}
"""The providers by the names that Anymail passes as `esp_name`."""

REASONS = {
    EmailType.BOUNCED: RejectReason.BOUNCED,
    EmailType.COMPLAINED: RejectReason.SPAM,
    EmailType.UNSUBSCRIBED: RejectReason.UNSUBSCRIBED,
    EmailType.REJECTED: RejectReason.BLOCKED,
}


def send_tracking(event: BaseEvent) -> int:
    """Send `anymail.signals.tracking` for each email event in an event. Returns how many were sent.

    Call it in a handler: the receivers run in its transaction. If one raises, nothing of their work remains, and all
    of them run again with the next attempt.
    """
    provider = event._leased.provider
    facts = normalise(provider, payload_of(event), event_id=event.id)
    for fact in facts:
        tracking.send(sender=project, event=tracking_event(fact), esp_name=ESP_NAMES.get(provider, provider))
    return len(facts)


def tracking_event(fact: EmailEvent) -> Any:
    """Return an email event as Anymail's receivers expect it."""
    return AnymailTrackingEvent(
        event_type=fact.type.value,
        timestamp=fact.occurred_at,
        event_id=fact.key,
        esp_event=fact.raw,
        message_id=fact.message_id,
        recipient=fact.recipient,
        reject_reason=REASONS.get(fact.type),
        description=fact.reason,
        mta_response=fact.reason,
        tags=list(fact.tags),
        metadata=dict(fact.metadata),
    )
