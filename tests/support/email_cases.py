"""The example payloads of providers as test cases."""

from typing import Any

import pytest

from oncehook.email.readers import normalise
from tests.support.email_payloads import POSTMARK, SENDGRID, SES, Row
from tests.support.more_email_payloads import BREVO, MAILGUN, MAILGUN_FORMS, MAILJET, MANDRILL, RESEND, SPARKPOST

PAYLOADS: dict[str, list[Row]] = {
    "sendgrid": SENDGRID,
    "ses": SES,
    "postmark": POSTMARK,
    "mailgun": [*MAILGUN, *MAILGUN_FORMS],
    "resend": RESEND,
    "sparkpost": SPARKPOST,
    "mandrill": MANDRILL,
    "mailjet": MAILJET,
    "brevo": BREVO,
}
"""Provider → its example payloads."""


def payload_cases(*providers: str) -> list[Any]:
    """Return each example payload of these providers with its expected events."""
    return [
        pytest.param(provider, payload, facts, id=f"{provider}-{number}")
        for provider in providers
        for number, (payload, facts) in enumerate(PAYLOADS[provider])
    ]


def assert_documented_events(provider: str, payload: Any, facts: list[Any]) -> None:
    """Check type, bounce, recipient, message id and time of each event in a payload."""
    events = normalise(provider, payload, event_id="evt_1")
    rows = [event.as_json() for event in events]
    assert [(e["type"], e["bounce"], e["recipient"], e["message_id"], e["occurred_at"]) for e in rows] == facts
    assert all(event.key and event.raw == payload for event in events), "each event has a key and its payload"
