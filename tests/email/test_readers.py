"""The readers of all providers give the documented events, and never raise."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehook.email.event import EmailType
from oncehook.email.readers import READERS, normalise
from tests.support.email_cases import PAYLOADS, assert_documented_events, payload_cases
from tests.support.email_payloads import JANE, SES_ID, postmark_bounce, sendgrid, ses_bounce, sns
from tests.support.odd_payloads import JSON, mangled


def test_every_reader_has_example_payloads() -> None:
    assert set(PAYLOADS) == set(READERS)


@pytest.mark.parametrize(("provider", "payload", "facts"), payload_cases("sendgrid", "ses", "postmark"))
def test_payload_gives_the_documented_events(provider: str, payload: Any, facts: list[Any]) -> None:
    assert_documented_events(provider, payload, facts)


def test_both_forms_of_an_ses_notification_have_the_same_key() -> None:
    (event,) = normalise("ses", ses_bounce("eventType", number=1), event_id="sns-1")
    (notification,) = normalise("ses", ses_bounce("notificationType", number=2), event_id="sns-2")
    assert event.key == notification.key


def test_recipients_that_bounce_in_the_same_millisecond_have_different_keys() -> None:
    bounced = [{"emailAddress": f"r{n}@example.com"} for n in range(5)]
    bounce = {"bounceType": "Permanent", "bouncedRecipients": bounced, "timestamp": "2025-11-15T09:46:40.1Z"}
    events = normalise("ses", sns("Bounce", bounce=bounce), event_id="sns-1")
    assert [event.recipient for event in events] == [f"r{n}@example.com" for n in range(5)]
    assert len({event.key for event in events}) == 5
    assert {event.message_id for event in events} == {SES_ID}


def test_ses_bounce_names_only_the_recipients_that_bounced() -> None:
    (event,) = normalise("ses", ses_bounce())
    assert event.recipient == JANE


@pytest.mark.parametrize("provider", sorted(set(PAYLOADS) - {"resend"}))
def test_tags_and_metadata_are_read(provider: str) -> None:
    payload, _ = PAYLOADS[provider][2]
    event = normalise(provider, payload)[0]
    assert "receipt" in event.tags
    assert event.metadata == {"order": "1042"}


def test_reason_is_the_servers_response_cut_to_1000_characters() -> None:
    assert normalise("postmark", postmark_bounce())[0].reason == "smtp;550 5.1.1 unknown"
    long = normalise("sendgrid", sendgrid("bounce", reason="x" * 5000))[0]
    assert long.reason == "x" * 1000


def test_payload_without_an_email_event_gives_none() -> None:
    assert normalise("postmark", {"FromFull": {}, "MessageID": "m"}) == []
    topic = "Successfully validated SNS topic for Amazon SES event publishing."
    assert normalise("ses", {"Type": "Notification", "MessageId": "m", "Message": topic}) == []
    assert normalise("ses", {"Message": json.dumps({"notificationType": "AmazonSnsSubscriptionSucceeded"})}) == []
    assert normalise("ses", sns("Received")) == []


@pytest.mark.system  # it takes long
@pytest.mark.parametrize("provider", PAYLOADS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_payload_makes_a_reader_raise(provider: str, data: Any) -> None:
    payload = data.draw(JSON | mangled(provider))
    for event in normalise(provider, payload, event_id="evt_1"):
        assert event.type in EmailType
        texts = [event.key, event.message_id or "", event.recipient or "", *event.tags]
        assert all(len(text.encode()) <= 255 and "\x00" not in text for text in texts)
        json.dumps([event.reason, event.metadata], ensure_ascii=False).encode()
        assert "\x00" not in (event.reason or "")
