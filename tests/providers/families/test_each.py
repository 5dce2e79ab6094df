"""Signatures in every element of an array: Adyen and Microsoft Graph."""

import json

import pytest

from oncehook.model.delivery import Delivery
from oncehook.providers.families.each import MAX_ELEMENTS, read_elements
from oncehook.providers.sign import sign
from tests.support.providers import NOW, at, changed, is_accepted, put, sender


@pytest.mark.parametrize("value", [None, 1, True, [], {}, "", "x"])
def test_one_element_with_a_wrong_client_state_rejects_the_delivery(value: object) -> None:
    one = sender("microsoft-graph")
    delivery = one.compose()
    for index in (0, 1):
        forged = put(delivery.body, f"value.{index}.clientState", value)
        assert not is_accepted(one, changed(delivery, body=forged))
    arrays: list[object] = [[], None, {}, "x", [1], [[]]]
    for array in arrays:
        assert not is_accepted(one, changed(delivery, body=put(delivery.body, "value", array)))


def test_verified_array_of_a_repeated_key_is_the_one_that_is_read() -> None:
    one = sender("microsoft-graph")
    delivery = one.compose()
    forged = b'[{"id":"forged","clientState":"forged","changeType":"forged"}]'
    last = delivery.body[:-1] + b',"value":' + forged + b"}"
    assert not is_accepted(one, changed(delivery, body=last))
    first = changed(delivery, body=delivery.body.replace(b'{"value"', b'{"value":' + forged + b',"value"', 1))
    assert is_accepted(one, first)
    source = one.source()
    assert "forged" not in [claim.event_id for claim in source.read(first, source.parse(first))]


ABSENT = ("pspReference", "originalReference", "merchantReference", "amount.value", "amount.currency", "success")


PRESENT = [999999.5, ["P0"], {"order": "42"}, True, False, 1e300, 10**400]


def _adyen_without(path: str) -> Delivery:
    """A delivery of one item that was signed without the field."""
    one = sender("adyen")
    item = json.loads(one.compose().body)["notificationItems"][0]
    inner = item["NotificationRequestItem"]
    *around, name = path.split(".")
    (inner[around[0]] if around else inner).pop(name, None)
    _, body = sign(one.provider, json.dumps({"notificationItems": [item]}).encode(), one.pair().signing, now=NOW)
    return Delivery.of(body, {"Content-Type": "application/json"})


@pytest.mark.parametrize("path", ABSENT)
def test_adyen_field_is_signed_as_empty_only_if_it_is_absent_or_null(path: str) -> None:
    one, delivery = sender("adyen"), _adyen_without(path)
    where = f"notificationItems.0.NotificationRequestItem.{path}"
    assert is_accepted(one, delivery)
    assert is_accepted(one, changed(delivery, body=put(delivery.body, where, None)))
    assert is_accepted(one, changed(delivery, body=put(delivery.body, where, "")))
    for value in PRESENT:
        parsed = json.loads(delivery.body)
        inner = at(parsed, where.split(".")[:-1])
        inner[where.rpartition(".")[2]] = value
        assert not is_accepted(one, changed(delivery, body=json.dumps(parsed).encode())), value


@pytest.mark.parametrize("amount", [b"null", b"{}", b'{"value":null,"currency":null}'])
def test_adyen_amount_without_a_value_is_absent(amount: bytes) -> None:
    delivery = _adyen_without("amount")
    assert is_accepted(sender("adyen"), delivery)
    assert is_accepted(sender("adyen"), changed(delivery, body=_with_amount(delivery, amount)))


@pytest.mark.parametrize(
    "amount",
    [
        b"[]",
        b'"5"',
        b"5",
        b'{"\\ud800":1,"value":5}',
        b'{"value":5,"value":[5]}',
        b'{"value":"\\ud800"}',
        b'{"v\\u0061lue":5}',
    ],
)
def test_adyen_amount_that_cannot_be_read_is_not_absent(amount: bytes) -> None:
    """Otherwise a more lenient parser would read a value that the signature does not cover."""
    delivery = _adyen_without("amount")
    for padding in (b"", b" " * 20_000):  # small and large bodies are read in two ways
        body = _with_amount(delivery, amount + padding)
        assert not is_accepted(sender("adyen"), changed(delivery, body=body))


def _with_amount(delivery: Delivery, amount: bytes) -> bytes:
    return delivery.body.replace(b'"eventCode"', b'"amount":' + amount + b',"eventCode"', 1)


@pytest.mark.parametrize("body", [b"{}", b'{"notificationItems":{}}', b'{"notificationItems":[1]}'])
def test_body_without_an_array_of_objects_cannot_be_signed(body: bytes) -> None:
    with pytest.raises(ValueError, match="there is no array of objects at notificationItems"):
        sign(sender("adyen").provider, body, sender("adyen").pair().signing, now=NOW)


def test_element_without_a_signed_field_cannot_be_signed() -> None:
    with pytest.raises(ValueError, match="an element lacks a part"):
        sign(sender("adyen").provider, b'{"notificationItems":[{}]}', sender("adyen").pair().signing, now=NOW)


def test_array_with_too_many_elements_is_not_read() -> None:
    assert len(read_elements(b"[" + b",".join([b"1"] * MAX_ELEMENTS) + b"]") or ()) == MAX_ELEMENTS
    assert read_elements(b"[" + b",".join([b"1"] * (MAX_ELEMENTS + 1)) + b"]") is None
    long = b'"' + b"x" * 100 + b'"'
    assert len(read_elements(b"[" + b",".join([long] * MAX_ELEMENTS) + b"]") or ()) == MAX_ELEMENTS
    assert read_elements(b"[" + b",".join([long] * (MAX_ELEMENTS + 1)) + b"]") is None
    assert read_elements(b"{}") is None and read_elements(b"[") is None
