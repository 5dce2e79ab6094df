"""The email event: addresses, message ids and keys in the form that is compared."""

import time
from typing import Any

import pytest

from oncehook.email.event import EmailEvent, EmailType, clean, compose_key, normalise_address, normalise_message_id


def test_composed_keys_of_different_values_differ_and_are_short() -> None:
    assert compose_key("a|b", "c") != compose_key("a", "b|c")
    assert compose_key("a%7Cb") != compose_key("a|b")
    assert len(compose_key("x" * 300).encode()) <= 255


@pytest.mark.parametrize(
    ("value", "expected"),
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
def test_address_is_normalised_by_its_domain_only(value: Any, expected: Any) -> None:
    assert normalise_address(value) == expected
    assert expected is None or normalise_address(expected) == expected


def test_invalid_domain_is_rejected_quickly() -> None:
    started = time.process_time()
    assert normalise_address("jane@" + "".join(chr(0x4E00 + n) for n in range(20_000)) + ".com") is None
    assert normalise_address("jane@" + "\ufdfa" * 200 + ".com") is None  # each becomes 18 letters
    assert time.process_time() - started < 5


def test_message_id_is_normalised_without_brackets() -> None:
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


def test_event_as_json_has_no_raw_payload() -> None:
    event = EmailEvent(
        key="k", type=EmailType.OPENED, message_id="m", recipient=None, occurred_at=None, tags=("a",), raw={"secret": 1}
    )
    assert event.as_json() == {
        "key": "k", "type": "opened", "message_id": "m", "recipient": None, "occurred_at": None, "bounce": None,
        "reason": None, "tags": ["a"], "metadata": {},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("recipient", "domain"), [("a@example.com", "example.com"), ('"a@b"@x.org', "x.org"), (None, None)]
)
def test_domain_is_the_part_after_the_last_at(recipient: str | None, domain: str | None) -> None:
    event = EmailEvent(key="k", type=EmailType.SENT, message_id=None, recipient=recipient, occurred_at=None)
    assert event.domain == domain


def test_clean_replaces_characters_that_a_database_cannot_store() -> None:
    assert clean("a\x00b") == "a\ufffdb"
    assert clean("é\x00\ud800") == "é\ufffd?"
