"""A delivery: one HTTP request."""

import pytest

from oncehook.model.delivery import Delivery


def test_delivery_of_plain_headers_has_lower_case_names_in_bytes() -> None:
    delivery = Delivery.of(b"{}", {"X-GitHub-Event": "push"})
    assert delivery.headers == {b"x-github-event": b"push"}
    assert (delivery.body, delivery.method, delivery.scheme, delivery.address) == (b"{}", "POST", "http", "")


def test_repeated_header_is_listed_so_that_a_signature_scheme_can_reject_it() -> None:
    delivery = Delivery(b"", [(b"x-a", b"1"), (b"x-b", b"2"), (b"x-a", b"3")])
    assert delivery.repeated == {b"x-a"}
    assert Delivery(b"", [(b"x-a", b"1")]).repeated == frozenset()


def test_headers_may_be_any_iterable() -> None:
    assert Delivery(b"", iter([(b"x-a", b"1"), (b"x-a", b"2")])).repeated == {b"x-a"}


def test_header_value_outside_of_latin_1_is_an_error() -> None:
    with pytest.raises(UnicodeEncodeError):
        Delivery.of(b"", {"X-A": "\u20ac"})
