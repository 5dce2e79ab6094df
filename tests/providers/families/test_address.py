"""Signatures that cover the public address, in the spellings of Twilio and HubSpot."""

import pytest

from oncehook.config.settings import SourceSettings
from oncehook.model.delivery import Delivery
from oncehook.providers.families.address import decode_escapes, with_and_without_port
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
