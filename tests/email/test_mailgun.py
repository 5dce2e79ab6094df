"""The reader of Mailgun: JSON payloads, and forms from before 2018."""

from typing import Any

import pytest

from oncehook.email.event import EmailType
from oncehook.email.readers import normalise
from tests.support.email_cases import assert_documented_events, payload_cases
from tests.support.email_payloads import JANE
from tests.support.more_email_payloads import mailgun


def test_key_does_not_depend_on_the_token_of_the_signature() -> None:
    one, other = mailgun("delivered"), mailgun("delivered")
    other["signature"] = {"timestamp": "1763209999", "token": "another", "signature": "…"}
    assert normalise("mailgun", one, event_id="a")[0].key == normalise("mailgun", other, event_id="b")[0].key


@pytest.mark.parametrize(("provider", "payload", "facts"), payload_cases("mailgun"))
def test_payload_gives_the_documented_events(provider: str, payload: Any, facts: list[Any]) -> None:
    assert_documented_events(provider, payload, facts)


def test_temporary_failure_is_deferred_and_not_a_bounce() -> None:
    (event,) = normalise("mailgun", mailgun("failed", severity="temporary", reason="generic"))
    assert (event.type, event.bounce) == (EmailType.DEFERRED, None)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("suppress-bounce", (EmailType.REJECTED, "hard")),
        ("espblock", (EmailType.BOUNCED, None)),
        ("old", (EmailType.BOUNCED, "soft")),
    ],
)
def test_reason_of_a_permanent_failure_gives_type_and_bounce(
    reason: str, expected: tuple[EmailType, str | None]
) -> None:
    (event,) = normalise("mailgun", mailgun("failed", severity="permanent", reason=reason))
    assert (event.type, event.bounce) == expected


def test_form_prefers_its_own_values_to_variables_of_the_sender() -> None:
    form = {"event": ["bounced", "mine"], "recipient": JANE, "timestamp": ["mine", "1763200000"], "order": "1042"}
    (event,) = normalise("mailgun", form, event_id="evt_1")
    assert (event.type, event.recipient, event.key) == (EmailType.BOUNCED, JANE, "evt_1")
    assert event.occurred_at is not None and event.occurred_at.year == 2025
    assert event.metadata == {"order": "1042", "event": "mine", "timestamp": "mine"}


def test_inbound_mail_is_not_an_email_event() -> None:
    assert normalise("mailgun", {"recipient": JANE, "body-plain": "hello"}) == []
