"""Reading CloudEvents: attributes in headers, in the body, and batches."""

import pytest

from oncehook.providers.cloudevents import attribute, is_batch, read
from oncehook.providers.expressions import NotReadable


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
def test_attribute_is_unquoted_and_decoded_once(value: bytes, text: str) -> None:
    assert attribute(value) == text


@pytest.mark.parametrize("value", [b"%C3%28", b"\xff", b"%ff", b"%ED%A0%80"])
def test_attribute_that_is_not_utf_8_is_rejected(value: bytes) -> None:
    with pytest.raises(NotReadable):
        attribute(value)


def test_attributes_in_headers_and_the_body_become_one_event() -> None:
    headers = {b"content-type": b"application/json", b"ce-id": b"1", b"ce-type": b"order%20paid", b"x-other": b"2"}
    assert read(b'{"total":5}', headers) == {"id": "1", "type": "order paid", "data": {"total": 5}}


@pytest.mark.parametrize("body", [b"", b"not JSON", b"\xff\xfe", b"[" * 100_000])
def test_data_that_is_not_json_is_none(body: bytes) -> None:
    assert read(body, {b"ce-id": b"1"}) == {"id": "1", "data": None}


def test_structured_event_is_the_body_itself() -> None:
    headers = {b"content-type": b"Application/CloudEvents+json; charset=utf-8", b"ce-id": b"ignored"}
    assert read(b'{"id":"1"}', headers) == {"id": "1"}
    with pytest.raises(NotReadable):
        read(b"not JSON", headers)


def test_batch_is_recognized_by_its_content_type() -> None:
    headers = {b"content-type": b"application/cloudevents-batch+json"}
    assert is_batch(headers) and read(b'[{"id":"1"}]', headers) == [{"id": "1"}]
    assert not is_batch({b"content-type": b"application/cloudevents+json"}) and not is_batch({})


def test_body_without_attributes_is_not_a_cloudevent() -> None:
    with pytest.raises(NotReadable, match="neither the headers nor the body hold a CloudEvent"):
        read(b'{"id":"1"}', {b"content-type": b"application/json"})
