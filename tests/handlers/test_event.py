"""The event that a handler gets: facts, payload, headers and keys."""

from typing import Any

import pytest

from oncehook import Event, SyncEvent, TransactionClosed
from oncehook.handlers.event import make_key
from oncehook.observability import tracing
from tests.support.events import make_leased

KEYS = {
    "evt_1": "a:evt_1",
    "sha256:" + "0" * 64: "a:sha256:" + "0" * 64,
    "x" * 191: "a:" + "x" * 191,
}


def test_forward_key_is_safe_in_a_header_and_unique_per_event() -> None:
    assert {event_id: make_key("a", event_id) for event_id in KEYS} == KEYS
    odd = ["a.b", "é", "a b", "a\r\nb", "\u2028", "x" * 192, "a,b", '"', "\ud800", "a%20b", ""]
    keys = [make_key("a", event_id) for event_id in odd]
    assert all(key.startswith("a:sha256-") and len(key) == 73 for key in keys)
    everything = [make_key(source, event_id) for source in ("a", "b", "a-b") for event_id in (*KEYS, *odd)]
    assert len(set(everything)) == len(everything)


def test_idempotency_key_is_stable_across_attempts_and_differs_by_purpose_event_and_source() -> None:
    def key(purpose: str, **changes: Any) -> str:
        return Event(make_leased(**changes)).idempotency_key(purpose)

    assert key("charge") == key("charge", attempt=7, lease=9, replays=3)
    others = {key("charge"), key("mail"), key(""), key("charge", event_id="evt_2"), key("charge", source="other")}
    assert len(others) == 5
    # a release that changed it would charge every customer twice
    assert key("charge") == "2e8feb63837fb6499e5fbd94c138e3e65cae28d3"


@pytest.mark.parametrize("event_class", [Event, SyncEvent])
def test_event_has_the_facts_of_its_receipt(event_class: type[Event] | type[SyncEvent]) -> None:
    event = event_class(make_leased(receipt=7, attempt=2, replays=1))
    assert (event.id, event.receipt, event.attempt, event.replays) == ("evt_1", 7, 2, 1)
    assert (event.source, event.provider, event.object_id) == ("stripe", "stripe", "sub_1")
    assert repr(event) == (f"<{event_class.__name__} stripe customer.subscription.updated evt_1 receipt=7 attempt=2>")


def test_correlation_id_is_the_receipt_number_if_the_delivery_has_none() -> None:
    assert Event(make_leased(receipt=7)).correlation_id == "7"
    assert Event(make_leased(correlation_id="order-1")).correlation_id == "order-1"


def test_path_reads_nested_values_and_a_missing_or_null_value_is_a_key_error() -> None:
    event = Event(make_leased(body=b'{"data": {"object": {"lines": [{"amount": 12}], "coupon": null}}}'))
    assert event["data.object.lines.0.amount"] == event.get("data.object.lines.0.amount") == 12
    assert event.get("data.object.coupon", "none") == event.get("data.other", "none") == "none"
    for path in ("data.object.coupon", "data.other"):
        with pytest.raises(KeyError, match=path):
            event[path]


def test_payload_is_decoded_from_json_or_a_form_and_none_if_it_is_neither() -> None:
    form = '{"content-type": "application/x-www-form-urlencoded; charset=utf-8"}'
    assert Event(make_leased(body=b'{"id": 1}')).payload == {"id": 1}
    assert Event(make_leased(body=b"id=1&to=a%40b", headers=form)).payload == {"id": "1", "to": "a@b"}
    broken = Event(make_leased(body=b"<xml/>"))
    assert broken.payload is None and broken.raw == b"<xml/>"
    assert Event(make_leased(body=None)).raw == b"", "the body of an erased payload is empty"


def test_headers_do_not_contain_the_trace_context_that_oncehook_stores() -> None:
    headers = f'{{"x-a": "1", "{tracing.CONTEXT_HEADER}": "00-1-2-01"}}'
    assert Event(make_leased(headers=headers)).headers == {"x-a": "1"}
    assert Event(make_leased(headers=None)).headers == {}


def test_event_outside_of_a_handler_cannot_request_effects() -> None:
    with pytest.raises(TransactionClosed, match="not passed to a handler by an inbox"):
        Event(make_leased()).effect("key", "send")  # type: ignore[unused-coroutine]
    with pytest.raises(TransactionClosed, match="not passed to a handler by an inbox"):
        SyncEvent(make_leased()).advance("invoice", "in_1")
