"""Which headers are stored with an event, and their JSON."""

import json

import pytest

from oncehook.providers import stored_headers
from oncehook.providers.stored_headers import StoredNames, headers_json


@pytest.mark.parametrize("name", [b"host", b"x-forwarded-for", b"forwarded", b"content-length", b"te"])
def test_headers_of_the_connection_are_not_stored_even_if_a_source_needs_them(name: bytes) -> None:
    assert not StoredNames()[name] and not StoredNames(needed=[name])[name]


@pytest.mark.parametrize(
    "name",
    [b"authorization", b"x-api-key", b"cookie", b"x-acme-token", b"x-hub-signature", b"x-acme-sig", b"dpop", b"x-hmac"],
)
def test_credentials_are_not_stored_unless_a_source_needs_them_for_an_event(name: bytes) -> None:
    assert not StoredNames()[name]
    assert StoredNames(needed=[name])[name]


@pytest.mark.parametrize("name", [b"content-type", b"user-agent", b"x-github-delivery", b"idempotency-key"])
def test_other_headers_are_stored(name: bytes) -> None:
    assert StoredNames()[name]


def test_signature_header_is_not_stored_even_if_a_source_needs_it() -> None:
    names = StoredNames(dropped=[b"x-seal", b"x-docusign-proof-*"], needed=[b"x-seal", b"x-docusign-proof-1"])
    assert not names[b"x-seal"] and not names[b"x-docusign-proof-1"]
    assert names[b"x-docusign"]


def test_memory_for_names_is_bounded() -> None:
    names = StoredNames()
    for number in range(3000):
        assert names[b"x-random-%d" % number]
    assert names[b"x" * 500] and len(names) == 1000 and max(map(len, names)) <= 100


def test_headers_are_a_json_object_with_bytes_as_latin_1() -> None:
    assert json.loads(headers_json(((b"user-agent", b"Acme \xfc"), (b"x-other", b'"')))) == {
        "user-agent": "Acme ü",
        "x-other": '"',
    }


def test_cache_of_header_texts_is_bounded_and_leaves_out_long_ones() -> None:
    stored_headers._cache.clear()
    for number in range(600):
        headers_json(((b"x-number", b"%d" % number),))
    headers_json(((b"x-long", b"x" * 5000),))
    assert 0 < len(stored_headers._cache) <= 256
    assert max(map(len, stored_headers._cache.values())) <= 2048
