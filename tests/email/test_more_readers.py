"""The readers of Resend, SparkPost, Mandrill, Mailjet and Brevo."""

from typing import Any

import pytest

from oncehook.email.event import EmailType
from oncehook.email.readers import normalise
from tests.support.email_cases import assert_documented_events, payload_cases
from tests.support.email_payloads import JANE
from tests.support.more_email_payloads import resend

PROVIDERS = ("resend", "sparkpost", "mandrill", "mailjet", "brevo")


@pytest.mark.parametrize(("provider", "payload", "facts"), payload_cases(*PROVIDERS))
def test_payload_gives_the_documented_events(provider: str, payload: Any, facts: list[Any]) -> None:
    assert_documented_events(provider, payload, facts)


@pytest.mark.parametrize(
    ("provider", "payload"),
    [
        ("sparkpost", {"msys": {}}),
        ("sparkpost", {"msys": {"relay_message": {"type": "relay"}}}),
        ("resend", {"type": "domain.updated", "data": {"id": "d"}}),
        ("resend", {"type": "email.received", "data": {"email_id": "e"}}),
        ("mandrill", {"event": "inbound", "msg": {}}),
        ("mailjet", {"email": JANE}),
        ("brevo", {"items": []}),
    ],
)
def test_payload_without_an_email_event_gives_none(provider: str, payload: dict[str, Any]) -> None:
    assert normalise(provider, payload) == []


def test_resend_event_of_a_mail_to_several_names_no_recipient() -> None:
    (alone,) = normalise("resend", resend("email.delivered"))
    (several,) = normalise("resend", resend("email.delivered", (JANE, "joe@example.com")))
    assert (alone.recipient, several.recipient) == (JANE, None)


def test_resend_bounce_without_a_type_is_hard_if_its_message_says_so() -> None:
    def bounce(message: str) -> str | None:
        return normalise("resend", resend("email.bounced", bounce={"message": message}))[0].bounce

    assert bounce("The server sent a hard bounce message.") == "hard"
    assert bounce("The mailbox is full.") is None


def test_mailjet_greylisting_is_deferred_unless_the_bounce_is_hard() -> None:
    payload = {"event": "bounce", "email": JANE, "MessageID": 1, "time": 1763200000, "error": "greylisted"}
    (soft,) = normalise("mailjet", payload)
    (hard,) = normalise("mailjet", {**payload, "hard_bounce": True})
    assert (soft.type, hard.type, hard.bounce) == (EmailType.DEFERRED, EmailType.BOUNCED, "hard")


def test_mandrill_rejection_for_another_reason_than_the_address_has_no_bounce() -> None:
    def reject(reason: str) -> str | None:
        return normalise(
            "mandrill", {"event": "reject", "ts": 1, "msg": {"email": JANE, "reject": {"reason": reason}}}
        )[0].bounce

    assert (reject("hard-bounce"), reject("invalid-sender")) == ("hard", None)
