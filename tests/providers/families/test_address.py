"""Signatures that cover the public address, in the spellings of Twilio and HubSpot."""

import base64
import hashlib
import hmac

import pytest

from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.providers.families.address import LONGEST_QUERY, decode_escapes, parameters, with_and_without_port
from oncehook.providers.sign import sign
from tests.support.providers import NOW, PUBLIC_URL, is_accepted, sender


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
def test_address_is_spelled_with_and_without_its_port(url: str, other: str) -> None:
    assert with_and_without_port(url) == [url, other]


def test_only_hubspots_escapes_are_decoded() -> None:
    assert decode_escapes(b"a=%3A%2f%3F%40%21%24%27%28%29%2A%2C%3B&b=%20%26%25%3D") == b"a=:/?@!$'()*,;&b=%20%26%25%3D"


def test_hubspot_signature_verifies_for_both_spellings_of_the_query() -> None:
    one = sender("hubspot")
    for query in ("a=%3A", "a=:"):
        settings = SourceSettings(public_url=f"{PUBLIC_URL}?{query}")
        headers, body = sign(one.provider, b"[]", one.pair().signing, now=NOW, settings=settings)
        pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        assert is_accepted(one, Delivery(body, pairs, query=b"a=%3A"))
        assert not is_accepted(one, Delivery(body, pairs, query=b"a=%3B"))


def test_text_that_is_not_an_address_has_one_spelling() -> None:
    assert with_and_without_port("ftp://a.example/x") == ["ftp://a.example/x"]


def test_query_that_is_too_long_or_has_too_many_parameters_has_none() -> None:
    assert parameters(b"a=1&b=") == [("a", "1"), ("b", "")]
    assert parameters(b"a=" + b"x" * LONGEST_QUERY) == []
    assert parameters(b"&".join([b"a=1"] * 201)) == []


@pytest.mark.parametrize(
    ("query", "accepted"),
    [
        ("bodySHA256={0}", True),
        ("x=1&bodySHA256={0}", True),
        ("", False),
        ("bodySHA256=", False),
        ("bodySHA256=\xfc", False),
        ("bodySHA256={0}&bodySHA256={0}", False),
        ("bodySHA256={0}&x=1", False),
        ("x={0}", False),
    ],
)
def test_json_body_verifies_only_if_its_hash_is_the_last_parameter(query: str, accepted: bool) -> None:
    body = b'{"MessageSid":"SM1"}'
    query = query.format(hashlib.sha256(body).hexdigest())
    address = PUBLIC_URL.encode() + (b"?" + query.encode("latin-1") if query else b"")
    signature = hmac.digest(sender("twilio").pair().signing.encode(), address, "sha1")
    pairs = [(b"x-twilio-signature", base64.b64encode(signature)), (b"content-type", b"application/json")]
    assert is_accepted(sender("twilio"), Delivery(body, pairs, query=query.encode("latin-1"))) is accepted
