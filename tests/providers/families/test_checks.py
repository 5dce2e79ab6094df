"""Cases of single families of checks; what holds for all of them is in tests/providers/test_every_provider.py."""

import base64
import hashlib
import json
from urllib.parse import parse_qs, urlencode

import pytest

from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.model.errors import Rejected
from oncehook.providers import jwt
from oncehook.providers.cloudevents import attribute
from oncehook.providers.expressions import NotReadable, TooDeep
from oncehook.providers.families.address import decode_escapes, with_and_without_port
from oncehook.providers.sign import sign
from oncehook.providers.signatures import algorithm
from oncehook.providers.template import Body
from oncehook.providers.xml import read_xml
from tests.support.providers import NOW, Sender, at, changed, put, sender


def is_accepted(one: Sender, delivery: Delivery) -> bool:
    source = one.source()
    assert source.verifier is not None
    try:
        return source.verifier.verify(delivery, NOW) == 0
    except Rejected:
        return False


# -- Plaid ----------------------------------------------------------------------------------------------------------


def token(header: dict[str, object], body: bytes) -> str:
    """A token with any header, truly signed by the key of the test."""
    message = jwt.signing_input(header, {"iat": int(NOW), "request_body_sha256": hashlib.sha256(body).hexdigest()})
    kind = algorithm("ecdsa-p256-sha256")
    signature = kind.sign(kind.load_signing(sender("plaid").pair().signing, "public"), message)
    return (message + b"." + jwt.encode(jwt.from_der(signature))).decode()


@pytest.mark.parametrize("name", ["none", "None", "HS256", "es256", "ES384", "RS256", "", None, ["ES256"]])
def test_a_token_may_not_choose_its_algorithm_even_if_it_verifies(name: object) -> None:
    for alg, accepted in (("ES256", True), (name, False)):
        headers = {"Plaid-Verification": token({"alg": alg, "kid": "k"}, b"{}")}
        assert is_accepted(sender("plaid"), Delivery.of(b"{}", headers)) is accepted


# -- Braintree ------------------------------------------------------------------------------------------------------


def test_of_two_signatures_beside_one_public_key_none_is_chosen() -> None:
    delivery = sender("braintree").compose()
    fields = {name: values[0] for name, values in parse_qs(delivery.body.decode()).items()}
    good = fields["bt_signature"]
    public = good.partition("|")[0]
    for pairs, accepted in (
        (good, True),
        (f"other|{'0' * 40}&{good}", True),
        (f"{good}&{public}|{'0' * 40}", False),
        (f"{public}|{'0' * 40}&{good}", False),
        ("&".join([f"other|{'0' * 40}"] * 40 + [good]), False),
        (good.replace("|", "||"), False),
        ("", False),
    ):
        body = urlencode({**fields, "bt_signature": pairs}).encode()
        assert is_accepted(sender("braintree"), changed(delivery, body=body)) is accepted, pairs


def encoded(xml: str) -> str:
    return base64.b64encode(xml.encode()).decode()


def test_xml_is_read_as_tables_and_texts() -> None:
    xml = "<n><kind>check</kind><s><t type='a'> 1 </t></s><e/><kind>last</kind></n>"
    assert read_xml(encoded(xml)) == {"n": {"kind": "last", "s": {"t": "1"}, "e": ""}}


@pytest.mark.parametrize(
    "xml",
    [
        "<!DOCTYPE n [<!ENTITY a 'b'>]><n>&a;</n>",
        "<!DOCTYPE n SYSTEM 'file:///etc/passwd'><n/>",
        "<!DOCTYPE n><n/>",
        "<n>&undefined;</n>",
        "<n>",
        "<n></m>",
        "<n/><n/>",
        "",
        "text",
    ],
)
def test_xml_that_could_attack_its_reader_or_is_none_is_refused(xml: str) -> None:
    with pytest.raises(NotReadable):
        read_xml(encoded(xml))


def test_xml_that_is_nested_too_deep_is_told_so() -> None:
    with pytest.raises(TooDeep):
        read_xml(encoded("<a>" * 100 + "</a>" * 100))


@pytest.mark.parametrize("text", ["!", "A", "é", "PG4vPg", "PG4vPg==="])
def test_a_payload_that_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(NotReadable):
        read_xml(text)


# -- addresses and forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("https://a.example/x", "https://a.example:443/x"),
        ("http://a.example/x", "http://a.example:80/x"),
        ("https://a.example:8443/x", "https://a.example/x"),
        ("https://a.example", "https://a.example:443"),
        ("https://u:p@a.example/x", "https://u:p@a.example:443/x"),
    ],
)
def test_an_address_is_tried_with_and_without_its_port(url: str, other: str) -> None:
    assert with_and_without_port(url) == [url, other]


def test_hubspots_escapes_are_decoded_and_no_others() -> None:
    assert decode_escapes(b"a=%3A%2f%3F%40%21%24%27%28%29%2A%2C%3B&b=%20%26%25%3D") == b"a=:/?@!$'()*,;&b=%20%26%25%3D"


def test_hubspot_may_have_signed_either_spelling_of_the_query() -> None:
    one = sender("hubspot")
    for query in ("a=%3A", "a=:"):
        from tests.support.providers import PUBLIC_URL

        settings = SourceSettings(public_url=f"{PUBLIC_URL}?{query}")
        headers, body = sign(one.provider, b"[]", one.pair().signing, now=NOW, settings=settings)
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        assert is_accepted(one, Delivery(body, pairs, query=b"a=%3A"))
        assert not is_accepted(one, Delivery(body, pairs, query=b"a=%3B"))


@pytest.mark.parametrize(
    ("body", "canonical"),
    [
        (b"b=2&a=1", b"a1b2"),
        (b"a=2&a=1&a=2", b"a1a2"),
        (b"a=", b"a"),
        (b"a=%2B+x", b"a+ x"),
        ("a=Grüße".encode(), "aGrüße".encode()),
        (b"", None),
        (b"&", None),
        (b"a", None),
        (b"\xff=1", None),
        (b"&".join(b"a%d=1" % number for number in range(1001)), None),
    ],
)
def test_a_form_is_signed_sorted_and_without_repetitions(body: bytes, canonical: bytes | None) -> None:
    assert Body(Delivery(body), lambda headers: True).form() == canonical


# -- elements -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [None, 1, True, [], {}, "", "x"])
def test_one_element_without_the_right_state_refuses_all(value: object) -> None:
    one = sender("microsoft-graph")
    delivery = one.compose()
    for index in (0, 1):
        forged = put(delivery.body, f"value.{index}.clientState", value)
        assert not is_accepted(one, changed(delivery, body=forged))
    for array in ([], None, {}, "x", [1], [[]]):
        assert not is_accepted(one, changed(delivery, body=put(delivery.body, "value", array)))


def test_of_an_array_that_stands_twice_the_one_that_is_verified_is_the_one_that_is_read() -> None:
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
    """A delivery of one item, which is signed without the field."""
    one = sender("adyen")
    item = json.loads(one.compose().body)["notificationItems"][0]
    inner = item["NotificationRequestItem"]
    *around, name = path.split(".")
    (inner[around[0]] if around else inner).pop(name, None)
    _, body = sign(one.provider, json.dumps({"notificationItems": [item]}).encode(), one.pair().signing, now=NOW)
    return Delivery.of(body, {"Content-Type": "application/json"})


@pytest.mark.parametrize("path", ABSENT)
def test_adyen_a_field_is_empty_only_where_it_is_absent_or_null(path: str) -> None:
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
def test_adyen_an_amount_without_value_is_absent(amount: bytes) -> None:
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
def test_adyen_an_amount_that_cannot_be_read_is_not_absent(amount: bytes) -> None:
    """What only a more patient parser reads would be read after the signature was checked without it."""
    delivery = _adyen_without("amount")
    for padding in (b"", b" " * 20_000):  # small and large bodies are read in two ways
        body = _with_amount(delivery, amount + padding)
        assert not is_accepted(sender("adyen"), changed(delivery, body=body))


def _with_amount(delivery: Delivery, amount: bytes) -> bytes:
    return delivery.body.replace(b'"eventCode"', b'"amount":' + amount + b',"eventCode"', 1)


# -- CloudEvents ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"plain", "plain"),
        (b"a%20b", "a b"),
        (b"%2525", "%25"),
        (b'"a \\"b"', 'a "b'),
        (b'"%41"', "A"),
        (b"%zz", "%zz"),
    ],
)
def test_an_attribute_is_unquoted_and_decoded_once(value: bytes, text: str) -> None:
    assert attribute(value) == text


@pytest.mark.parametrize("value", [b"%C3%28", b"\xff", b"%ff", b"%ED%A0%80"])
def test_an_attribute_that_is_not_utf_8_is_refused(value: bytes) -> None:
    with pytest.raises(NotReadable):
        attribute(value)
