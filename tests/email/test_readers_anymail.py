"""The readers agree with the webhook classes of django-anymail, except for the differences listed here."""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from anymail.webhooks import amazon_ses, brevo, mailgun, mailjet, mandrill, postmark, resend, sendgrid, sparkpost
from django.test import RequestFactory
from django.utils.datastructures import MultiValueDict

from oncehook.email.event import normalise_address, normalise_message_id
from oncehook.email.readers import normalise
from tests.support import django_project  # noqa: F401  # Anymail needs settings, which this module configures
from tests.support.email_cases import PAYLOADS

VIEWS: dict[str, Any] = {
    "sendgrid": sendgrid.SendGridTrackingWebhookView,
    "ses": amazon_ses.AmazonSESTrackingWebhookView,
    "postmark": postmark.PostmarkTrackingWebhookView,
    "mailgun": mailgun.MailgunTrackingWebhookView,
    "resend": resend.ResendTrackingWebhookView,
    "sparkpost": sparkpost.SparkPostTrackingWebhookView,
    "mandrill": mandrill.MandrillCombinedWebhookView,
    "mailjet": mailjet.MailjetTrackingWebhookView,
    "brevo": brevo.BrevoTrackingWebhookView,
}
IN_ARRAYS = {"sendgrid", "sparkpost", "mailjet"}

DIFFERENT_MESSAGE = {
    "sendgrid": "Anymail looks for an id that it adds to its own sends, else smtp-id, which opens and clicks lack; "
    "ours is the id that SendGrid answers a send with, the start of sg_message_id",
}
DIFFERENT_TIME = {
    "ses": "Anymail takes the time at which SNS published; ours is when it happened, the same in both of SES's forms",
}
DIFFERENT_TYPE = {
    ("ses", "DeliveryDelay"): "Anymail does not know it yet",
    ("ses", "Subscription"): "Anymail does not know it yet",
    ("resend", "email.failed"): "Anymail does not know it yet",
    ("resend", "email.suppressed"): "Anymail does not know it yet",
    ("ses", "Complaint"): "Anymail counts the feedback type not-spam as a complaint",
    ("mailgun", "failed"): "Anymail calls it bounced where Mailgun did not send to an address on its own list",
    ("brevo", "unsubscribed"): "Anymail does not know it",
}
DIFFERENT_RECIPIENT = {
    ("ses", "DeliveryDelay"): "ours are those that are delayed, not all of the mail",
    ("ses", "Subscription"): "on a mail to several, SES does not say who left: ours has no recipient",
    ("ses", "Open"): "on a mail to several, SES does not say who opened it: Anymail takes all of them",
    ("ses", "Click"): "on a mail to several, SES does not say who clicked: Anymail takes all of them",
    ("resend", "email.bounced"): "on a mail to several, Resend does not say whose it is: Anymail takes the first",
}


def through_anymail(provider: str, payload: Any) -> list[Any]:
    """Return the events that Anymail reads from a payload, without its checks of the sender."""
    view = VIEWS[provider].__new__(VIEWS[provider])
    view.signal = None
    factory = RequestFactory()
    if provider == "mandrill":
        request = factory.post("/", {"mandrill_events": json.dumps([payload])})
    elif provider == "mailgun" and "event-data" not in payload:
        request = factory.post("/", MultiValueDict({name: [value] for name, value in payload.items()}))
    else:
        body = [payload] if provider in IN_ARRAYS else payload
        request = factory.post("/", json.dumps(body), content_type="application/json")
    return list(view.parse_events(request))


def name_of(provider: str, payload: Any) -> str:
    """Return the provider's name of the event."""
    if provider == "ses":
        inner = json.loads(payload["Message"])
        return str(inner.get("eventType") or inner.get("notificationType"))
    if provider == "sparkpost":
        return str(next(iter(payload["msys"].values()))["type"])
    if provider == "mailgun" and "event-data" in payload:
        return str(payload["event-data"]["event"])
    return str(payload.get("event") or payload.get("type") or payload.get("Type") or payload.get("RecordType"))


CASES = [
    pytest.param(provider, payload, id=f"{provider}-{number}-{name_of(provider, payload)}")
    for provider, rows in PAYLOADS.items()
    for number, (payload, _) in enumerate(rows)
]


@pytest.mark.parametrize(("provider", "payload"), CASES)
def test_readers_agree_with_anymail_except_for_the_listed_differences(provider: str, payload: Any) -> None:
    theirs, ours = through_anymail(provider, payload), normalise(provider, payload, event_id="evt_1")
    name = name_of(provider, payload)
    if (provider, name) not in DIFFERENT_RECIPIENT:
        assert [event.recipient for event in ours] == [normalise_address(event.recipient) for event in theirs]
    elif provider == "resend" and len(payload["data"]["to"]) == 1:
        assert ours[0].recipient == normalise_address(theirs[0].recipient)
    for their, our in zip(theirs, ours, strict=False):
        if (provider, name) not in DIFFERENT_TYPE:
            assert our.type.value == their.event_type
        if provider not in DIFFERENT_MESSAGE:
            assert our.message_id == normalise_message_id(their.message_id)
        if provider not in DIFFERENT_TIME:
            assert our.occurred_at == their.timestamp
        assert set(their.tags or ()) <= set(our.tags)


def test_each_listed_difference_to_anymail_exists() -> None:
    """A listed difference that no longer exists must not hide another one."""
    seen: set[Any] = set()
    for provider, rows in PAYLOADS.items():
        for payload, _ in rows:
            name = name_of(provider, payload)
            theirs, ours = through_anymail(provider, payload), normalise(provider, payload, event_id="evt_1")
            if [event.recipient for event in ours] != [normalise_address(event.recipient) for event in theirs]:
                seen.add(("recipient", provider, name))
            for their, our in zip(theirs, ours, strict=False):
                if our.type.value != their.event_type:
                    seen.add(("type", provider, name))
                if our.message_id != normalise_message_id(their.message_id):
                    seen.add(("message", provider))
                if our.occurred_at != their.timestamp:
                    seen.add(("time", provider))
    assert seen == {
        *(("recipient", *key) for key in DIFFERENT_RECIPIENT),
        *(("type", *key) for key in DIFFERENT_TYPE),
        *(("message", provider) for provider in DIFFERENT_MESSAGE),
        *(("time", provider) for provider in DIFFERENT_TIME),
    }


# -- the shared vectors, if they exist ------------------------------------------------------------------------------

VECTORS = {"aws_sns_ses": "ses", **{name: name for name in VIEWS if name != "ses"}}
FOLDER = os.environ.get("ONCEHOOK_VECTORS")


def shared_payloads() -> list[Any]:
    """Return the payloads of the valid vectors, one for each event. ONCEHOOK_VECTORS names their folder."""
    payloads = []
    for file, provider in VECTORS.items() if FOLDER else ():
        for case in json.loads((Path(str(FOLDER)) / f"{file}.json").read_text())["cases"]:
            body = case.get("body") or ""
            if not case.get("valid") or (provider == "ses" and "mail" not in body):
                continue
            form = dict(parse_qsl(body, keep_blank_values=True)) if body[:1] not in "[{" else None
            parsed = (
                json.loads(form["mandrill_events"]) if provider == "mandrill" and form else form or json.loads(body)
            )
            for payload in parsed if isinstance(parsed, list) else [parsed]:
                payloads.append(pytest.param(provider, payload, id=f"{file}-{case['name']}"))
    return payloads


if FOLDER:

    @pytest.mark.parametrize(("provider", "payload"), shared_payloads())
    def test_readers_agree_with_anymail_on_the_shared_vectors(provider: str, payload: Any) -> None:
        theirs, ours = through_anymail(provider, payload), normalise(provider, payload, event_id="evt_1")
        assert [event.type.value for event in ours] == [event.event_type for event in theirs]
        for their, our in zip(theirs, ours, strict=True):
            assert provider in DIFFERENT_TIME or our.occurred_at == their.timestamp
            if (
                their.recipient is not None
            ):  # SparkPost's older payloads have only `rcpt_to`, which Anymail does not read
                assert our.recipient == normalise_address(their.recipient)
