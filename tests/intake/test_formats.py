"""The formats of messages that others put into a queue."""

import json
from typing import Any

import pytest

from oncehook.intake.broker import Message
from oncehook.intake.formats import MAX_HEADERS, read_eventbridge, read_http, read_sns
from oncehook.model.errors import Rejected
from oncehook.providers.definition import find
from oncehook.providers.expressions import NEW

STRIPE, SHOPIFY = find("stripe", {}), find("shopify", {})


def message(body: Any, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Message:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Message(id="m-1", body=data, headers=headers, sent_at=0.0, receives=1)


def bus_event(detail: Any, source: str = "aws.partner/stripe.com/ed_1") -> dict[str, Any]:
    return {"version": "0", "id": "e-1", "detail-type": "invoice.paid", "source": source, "detail": detail}


def test_http_message_has_the_exact_body_and_its_attributes_as_headers() -> None:
    delivery = read_http(message(b' {"id": 1} ', ((b"stripe-signature", b"t=1"),)), STRIPE)
    assert delivery.body == b' {"id": 1} '
    assert delivery.headers == {b"stripe-signature": b"t=1", NEW: b"m-1"}


def test_name_that_no_http_header_can_have_is_left_out() -> None:
    pairs = ((b":new", b"forged"), (b"", b"1"), (b"a b", b"2"), (b"x" * 300, b"3"), (b"ok", b"4"))
    assert read_http(message(b"{}", pairs), STRIPE).headers == {b"ok": b"4", NEW: b"m-1"}


def test_message_with_too_many_headers_is_rejected() -> None:
    pairs = tuple((f"x-{i}".encode(), b"") for i in range(MAX_HEADERS + 1))
    with pytest.raises(Rejected, match="more than 200 headers"):
        read_http(message(b"{}", pairs), STRIPE)


def test_notification_of_sns_has_the_body_and_the_headers() -> None:
    attributes = {"Stripe-Signature": {"Type": "String", "Value": "t=1"}, "Count": {"Type": "Number", "Value": 3}}
    notification = {"Type": "Notification", "TopicArn": "arn", "Message": '{"id": 1}', "MessageAttributes": attributes}
    delivery = read_sns(message(notification), STRIPE)
    assert delivery.body == b'{"id": 1}'
    assert delivery.headers == {b"stripe-signature": b"t=1", NEW: b"m-1"}


def test_detail_of_an_event_is_the_body_byte_by_byte() -> None:
    detail = b'{"id":"evt_1",  "type":"invoice.paid","amount":1.0,"name":"\\u00e9"}'
    body = json.dumps(bus_event(None)).encode().replace(b'"detail": null', b'"detail": ' + detail)
    assert read_eventbridge(message(body), STRIPE).body == detail


def test_event_of_shopify_has_its_headers_in_the_metadata() -> None:
    detail = {"payload": {"id": 7}, "metadata": {"X-Shopify-Topic": "orders/create", "X-Shopify-Webhook-Id": "w-1"}}
    delivery = read_eventbridge(message(bus_event(detail, "aws.partner/shopify.com/1/shop")), SHOPIFY)
    assert json.loads(delivery.body) == {"id": 7}
    assert delivery.headers[b"x-shopify-webhook-id"] == b"w-1"


@pytest.mark.parametrize("source", ["aws.partner/shopify.com/1", "stripe", "x/aws.partner/stripe.com/ed_1"])
def test_event_of_another_partner_is_rejected(source: str) -> None:
    with pytest.raises(Rejected, match="the source of the event"):
        read_eventbridge(message(bus_event({"id": "evt_1"}, source)), STRIPE)


HOSTILE: list[Any] = [b"", b"{", b"\xff", b"[" * 100_000, [], {"detail": 1}, {"source": 1, "detail": {}}, b"null"]


@pytest.mark.parametrize("body", HOSTILE, ids=repr)
def test_message_in_another_format_is_rejected(body: Any) -> None:
    for read in (read_sns, read_eventbridge):
        with pytest.raises(Rejected):
            read(message(body), SHOPIFY)


@pytest.mark.parametrize("detail", [{}, [], "text", {"payload": {}, "metadata": []}, {"metadata": {}}])
def test_event_of_shopify_without_its_parts_is_rejected(detail: Any) -> None:
    with pytest.raises(Rejected):
        read_eventbridge(message(bus_event(detail, "aws.partner/shopify.com/1/shop")), SHOPIFY)
