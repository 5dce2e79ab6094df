"""Email events of every provider become one: the documented shapes, and whatever else may come."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncehook.email.event import EmailType, compose_key, normalise_address, normalise_message_id
from oncehook.email.readers import READERS, normalise
from tests.support.email_payloads import JANE, PAYLOADS, SES_ID, mailgun, postmark_bounce, sendgrid, ses_bounce, sns

CASES = [
    pytest.param(provider, payload, facts, id=f"{provider}-{number}")
    for provider, rows in PAYLOADS.items()
    for number, (payload, facts) in enumerate(rows)
]


def test_every_provider_that_is_read_has_payloads_here() -> None:
    assert set(PAYLOADS) == set(READERS)


@pytest.mark.parametrize(("provider", "payload", "facts"), CASES)
def test_what_a_provider_posts_is_one_event_a_recipient(provider: str, payload: Any, facts: list[Any]) -> None:
    events = normalise(provider, payload, event_id="evt_1")
    found = [event.as_json() for event in events]
    assert [(e["type"], e["bounce"], e["recipient"], e["message_id"], e["occurred_at"]) for e in found] == facts
    assert all(event.key and event.raw == payload for event in events)


# -- keys -----------------------------------------------------------------------------------------------------------


def test_both_forms_of_an_ses_notification_are_one_fact_whatever_sns_calls_them() -> None:
    (event,) = normalise("ses", ses_bounce("eventType", number=1), event_id="sns-1")
    (notification,) = normalise("ses", ses_bounce("notificationType", number=2), event_id="sns-2")
    assert event.key == notification.key


def test_two_recipients_that_bounce_in_one_millisecond_are_two_facts() -> None:
    bounced = [{"emailAddress": f"r{n}@example.com"} for n in range(5)]
    bounce = {"bounceType": "Permanent", "bouncedRecipients": bounced, "timestamp": "2025-11-15T09:46:40.1Z"}
    events = normalise("ses", sns("Bounce", bounce=bounce), event_id="sns-1")
    assert [event.recipient for event in events] == [f"r{n}@example.com" for n in range(5)]
    assert len({event.key for event in events}) == 5
    assert {event.message_id for event in events} == {SES_ID}


def test_only_those_that_bounced_are_named_and_not_the_others_on_the_mail() -> None:
    (event,) = normalise("ses", ses_bounce())
    assert event.recipient == JANE


def test_a_mailgun_event_has_the_same_key_under_another_token() -> None:
    one, other = mailgun("delivered"), mailgun("delivered")
    other["signature"] = {"timestamp": "1763209999", "token": "another", "signature": "…"}
    assert normalise("mailgun", one, event_id="a")[0].key == normalise("mailgun", other, event_id="b")[0].key


def test_keys_are_composed_so_that_two_facts_never_give_one() -> None:
    assert compose_key("a|b", "c") != compose_key("a", "b|c")
    assert compose_key("a%7Cb") != compose_key("a|b")
    assert len(compose_key("x" * 300).encode()) <= 255


# -- what comes along -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", sorted(set(PAYLOADS) - {"resend"}))
def test_tags_and_metadata_come_along(provider: str) -> None:
    payload, _ = PAYLOADS[provider][2]
    event = normalise(provider, payload)[0]
    assert "receipt" in event.tags
    assert event.metadata == {"order": "1042"}


def test_the_reason_is_what_the_server_said_cut_to_a_sentence() -> None:
    assert normalise("postmark", postmark_bounce())[0].reason == "smtp;550 5.1.1 unknown"
    long = normalise("sendgrid", sendgrid("bounce", reason="x" * 5000))[0]
    assert long.reason == "x" * 1000


def test_what_is_no_email_event_is_no_fact() -> None:
    assert normalise("postmark", {"FromFull": {}, "MessageID": "m"}) == []
    assert normalise("sparkpost", {"msys": {}}) == []
    assert normalise("sparkpost", {"msys": {"relay_message": {"type": "relay"}}}) == []
    assert normalise("resend", {"type": "domain.updated", "data": {"id": "d"}}) == []
    assert normalise("resend", {"type": "email.received", "data": {"email_id": "e"}}) == []
    assert normalise("mandrill", {"event": "inbound", "msg": {}}) == []
    assert normalise("brevo", {"items": []}) == []
    topic = "Successfully validated SNS topic for Amazon SES event publishing."
    assert normalise("ses", {"Type": "Notification", "MessageId": "m", "Message": topic}) == []
    assert normalise("ses", {"Message": json.dumps({"notificationType": "AmazonSnsSubscriptionSucceeded"})}) == []
    assert normalise("ses", sns("Received")) == []


# -- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("jane@example.com", "jane@example.com"),
        ("Jane@Example.COM", "Jane@example.com"),
        (" jane@example.com. ", "jane@example.com"),
        ("Jane Doe <jane@Example.com>", "jane@example.com"),
        ('"a@b"@example.com', '"a@b"@example.com'),
        ('"<a>"@example.com', '"<a>"@example.com'),
        ("jane+tag@example.com", "jane+tag@example.com"),
        ("jane@Bücher.example", "jane@xn--bcher-kva.example"),
        ("jane@BÜCHER.example", "jane@xn--bcher-kva.example"),
        ("jane@xn--bcher-kva.EXAMPLE", "jane@xn--bcher-kva.example"),
        ("jane@bu\u0308cher.example", "jane@xn--bcher-kva.example"),
        ("jane@straße.example", "jane@xn--strae-oqa.example"),
        ("jane@例え。テスト", "jane@xn--r8jz45g.xn--zckzah"),
        ("Jörg@example.com", "Jörg@example.com"),
        ("no address", None),
        ("@example.com", None),
        ("jane@", None),
        ("jane@.", None),
        ("ja ne@example.com", None),
        ("a@@example.com", None),
        ("jane@exam\u00adple\u200b.com", "jane@example.com"),
        ('"Doe, Jane" <jane@example.com> (at work)', "jane@example.com"),
        ("a@example.com, b@example.com", None),
        ("a@example.com;b@example.com", None),
        ("A <a@example.com>, B <b@example.com>", None),
        ("(" * 20_000 + "<@example.com", None),
        ("a <" * 20_000 + "@example.com", None),
        ("jane@" + "x" * 300 + ".com", None),
        ("", None),
        (None, None),
        (17, None),
    ],
)
def test_an_address_is_compared_by_its_domain_without_case_and_its_local_part_as_it_is(given: Any, kept: Any) -> None:
    assert normalise_address(given) == kept
    assert kept is None or normalise_address(kept) == kept


def test_a_domain_that_is_none_is_not_worked_on_for_long() -> None:
    started = time.monotonic()
    assert normalise_address("jane@" + "".join(chr(0x4E00 + n) for n in range(20_000)) + ".com") is None
    assert normalise_address("jane@" + "\ufdfa" * 200 + ".com") is None  # each becomes 18 letters
    assert time.monotonic() - started < 5


def test_a_message_id_is_compared_without_its_brackets() -> None:
    assert normalise_message_id("<a@b>") == normalise_message_id("a@b") == "a@b"
    assert (
        normalise_message_id(12345678901234567),
        normalise_message_id(0),
        normalise_message_id(True),
        normalise_message_id(""),
    ) == (
        "12345678901234567",
        None,
        None,
        None,
    )


# -- anything -------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["a@b.c", "Bounce", "x\x00y", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def mangled(provider: str) -> st.SearchStrategy[Any]:
    """A payload of the provider with any of its fields replaced by anything."""
    payload = st.sampled_from([row[0] for row in PAYLOADS[provider]])

    def replace(value: Any, draw: Any) -> Any:
        if isinstance(value, dict):
            return {name: replace(one, draw) if draw(st.integers(0, 5)) else draw(JSON) for name, one in value.items()}
        return value

    return st.composite(lambda draw: replace(draw(payload), draw))()


@pytest.mark.system  # it takes long
@pytest.mark.parametrize("provider", PAYLOADS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_nothing_that_arrives_is_an_error(provider: str, data: Any) -> None:
    payload = data.draw(JSON | mangled(provider))
    for event in normalise(provider, payload, event_id="evt_1"):
        assert event.type in EmailType
        texts = [event.key, event.message_id or "", event.recipient or "", *event.tags]
        assert all(len(text.encode()) <= 255 and "\x00" not in text for text in texts)
        json.dumps([event.reason, event.metadata], ensure_ascii=False).encode()
        assert "\x00" not in (event.reason or "")
