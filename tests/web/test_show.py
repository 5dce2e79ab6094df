"""Payloads on the pages, and the commands to copy: whatever a sender wrote, it is text and one argument."""

import json
import re
import shlex
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oncehook.model.receipt import Receipt, StoredPayload
from oncehook.model.states import State
from oncehook.web.show import MAX_LENGTH, as_curl, as_send, pretty, shorten, visible

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def make_receipt(**changes: object) -> Receipt:
    now = datetime.now(UTC)
    values: dict[str, Any] = {
        "receipt": 7,
        "source": "stripe",
        "provider": "stripe",
        "event_id": "evt_1",
        "type": "invoice.paid",
        "object_id": "in_1",
        "occurred_at": None,
        "received_at": now,
        "status": State.PROCESSED,
        "attempts": 1,
        "next_attempt_at": None,
        "processed_at": now,
        "failed_at": None,
        "unhandled_at": None,
        "last_error": None,
        "duplicates": 0,
        "correlation_id": None,
        "delivery_id": None,
        "replays": 0,
    }
    return Receipt(**values | changes)


@given(st.binary(max_size=300))
def test_no_bytes_of_a_sender_become_a_tag(body: bytes) -> None:
    html, is_cut = pretty(body)
    assert re.findall(r"<(?!/?span)", html) == [] and not is_cut


@given(JSON)
def test_formatted_json_has_the_same_value(value: object) -> None:
    html, _ = pretty(json.dumps(value).encode())
    assert json.loads(unescape(re.sub(r"</?span[^>]*>", "", html))) == value


def test_numbers_keep_the_notation_of_the_sender() -> None:
    html, _ = pretty(b'{"price": 1.10, "id": 12345678901234567890123}')
    assert "1.10" in html and "12345678901234567890123" in html


@pytest.mark.parametrize(
    "body",
    [b"[" * 900 + b"1," * 200_000 + b"1" + b"]" * 900, b'"' + b"x" * 10**6 + b'"', b"[" * 10**6, b"x" * 10**6],
    ids=["deep and wide", "one long text", "not JSON", "plain"],
)
def test_large_body_is_cut_off(body: bytes) -> None:
    html, is_cut = pretty(body)
    assert is_cut and len(html) < 4 * MAX_LENGTH


@given(st.text())
def test_visible_text_has_no_hidden_characters(text: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]", visible(text))


@given(
    st.text(max_size=50),
    st.dictionaries(st.from_regex(r"x-[a-z]{1,8}", fullmatch=True), st.text(max_size=30), max_size=3),
)
def test_curl_command_is_one_command_with_the_stored_headers_and_body(text: str, headers: dict[str, str]) -> None:
    payload = StoredPayload(json.dumps({"note": text}, ensure_ascii=False).encode("utf-8", "replace"), headers)
    words = shlex.split(as_curl(make_receipt(), payload, "http://127.0.0.1:8000/webhooks").replace("\\\n", " "))
    assert words[:3] == ["curl", "-i", "http://127.0.0.1:8000/webhooks/stripe"]
    data = words[words.index("--data-binary") + 1]
    assert data == payload.body.decode() or data == "@event-7.txt"
    printable = [f"{name}: {value}" for name, value in headers.items() if value.isprintable()]
    assert [words[i + 1] for i, word in enumerate(words[:-2]) if word == "-H"] == printable


@given(st.text(min_size=1, max_size=50))
@example("--secret=file:/etc/passwd")
def test_type_of_a_sender_cannot_add_an_option_to_the_send_command(type_: str) -> None:
    words = shlex.split(as_send(make_receipt(type=type_), "http://127.0.0.1:8000/webhooks"))
    assert words[:3] == ["oncehook", "send", "stripe"] and len(words) == 6
    assert words[3] == (type_ if type_.isprintable() and not type_.startswith("-") else "TYPE")


def test_long_values_are_shortened() -> None:
    assert shorten("abc") == "'abc'" and shorten(["x"]) == "['x']"
    assert len(shorten("x" * 1000)) == 300 and shorten("x" * 1000).endswith("…")
