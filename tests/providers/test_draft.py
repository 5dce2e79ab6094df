"""Editing an unsigned sample: its id, its fields, its headers and its payload."""

import json
from typing import Any
from urllib.parse import parse_qs

import pytest

from oncehook.providers.definition import built_in, read_provider
from oncehook.providers.draft import encode_payload, merge_headers, with_field, with_id
from oncehook.providers.sample import Sample

JSON = {"Content-Type": "application/json"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def draft(payload: Any, **headers: str) -> Sample:
    return Sample({**JSON, **headers}, json.dumps(payload).encode())


def test_id_is_set_where_the_definition_has_it() -> None:
    sample = with_id(built_in("stripe"), draft({"id": "old", "type": "t"}), "evt_new", split=None)
    assert json.loads(sample.body) == {"id": "evt_new", "type": "t"}


def test_id_in_a_header_replaces_the_header_in_any_spelling() -> None:
    sample = with_id(built_in("github"), draft({}, **{"x-github-delivery": "old"}), "new", split=None)
    assert sample.headers == {**JSON, "X-GitHub-Delivery": "new"} and sample.body == b"{}"


def test_id_of_the_source_takes_precedence_over_the_definition() -> None:
    sample = with_id(built_in("stripe"), draft({"id": "evt", "a": {"b": 1}}), "new", split=None, natural=["a.b"])
    assert json.loads(sample.body) == {"id": "evt", "a": {"b": "new"}}


def test_id_of_the_first_event_of_a_batch_is_set() -> None:
    sample = with_id(built_in("sendgrid"), draft([{"sg_event_id": "1"}, {"sg_event_id": "2"}]), "new", split="*")
    assert [event["sg_event_id"] for event in json.loads(sample.body)] == ["new", "2"]


@pytest.mark.parametrize("name", ["adyen", "clickup", "dropbox"])
def test_id_that_is_composed_or_generated_cannot_be_set(name: str) -> None:
    with pytest.raises(ValueError, match="are composed of several facts"):
        with_id(built_in(name), draft({}), "new", split=None)


@pytest.mark.parametrize("payload", [[], "text", 7])
def test_id_cannot_be_set_in_a_payload_without_an_object(payload: Any) -> None:
    with pytest.raises(ValueError, match="the payload has no object at 'id'"):
        with_id(built_in("stripe"), draft(payload), "new", split=None)


def test_field_is_set_and_missing_objects_on_its_path_are_created() -> None:
    sample = with_field(built_in("stripe"), draft({"items": [{}]}), "data.object.amount", 5, split=None)
    sample = with_field(built_in("stripe"), sample, "items.0.name", "mug", split=None)
    assert json.loads(sample.body) == {"items": [{"name": "mug"}], "data": {"object": {"amount": 5}}}


def test_field_of_the_first_event_of_a_batch_is_set() -> None:
    sample = with_field(
        built_in("adyen"), draft({"notificationItems": [{}, {}]}), "live", "no", split="notificationItems"
    )
    assert json.loads(sample.body) == {"notificationItems": [{"live": "no"}, {}]}


@pytest.mark.parametrize("path", ["id.deeper", "items.9", "items.name"])
def test_field_cannot_be_set_below_another_kind_of_value(path: str) -> None:
    with pytest.raises(ValueError, match="cannot be set: the payload has another kind of value"):
        with_field(built_in("stripe"), draft({"id": "evt", "items": []}), path, 1, split=None)


def test_field_cannot_be_set_in_a_payload_that_is_not_in_the_format_of_its_content_type() -> None:
    with pytest.raises(ValueError, match="the payload is not JSON"):
        with_field(built_in("stripe"), Sample(JSON, b"not JSON"), "a", 1, split=None)
    with pytest.raises(ValueError, match="the payload is not a form"):
        with_field(built_in("github"), Sample(FORM, b"other=1"), "a", 1, split=None)


def test_field_of_a_form_is_set() -> None:
    sample = with_field(built_in("twilio"), Sample(FORM, b"CallSid=CA1"), "CallStatus", "busy", split=None)
    assert parse_qs(sample.body.decode()) == {"CallSid": ["CA1"], "CallStatus": ["busy"]}


def test_payload_is_encoded_as_the_provider_sends_it() -> None:
    assert encode_payload(built_in("stripe"), JSON, {"a": 1}) == b'{"a":1}'
    assert encode_payload(built_in("twilio"), FORM, {"a": "1 2"}) == b"a=1+2"
    assert encode_payload(built_in("github"), FORM, {"a": 1}) == b"payload=%7B%22a%22%3A1%7D"
    with pytest.raises(ValueError, match="the events of braintree are XML"):
        encode_payload(built_in("braintree"), FORM, {"a": 1})


def test_header_that_is_merged_replaces_one_of_the_same_name_in_any_case() -> None:
    assert merge_headers({"X-A": "1", "X-B": "2"}, {"x-a": "3"}) == {"X-B": "2", "x-a": "3"}


def test_custom_provider_without_a_form_field_sends_the_fields_themselves() -> None:
    table = {"content": ["form"], "signatures": [{"algorithm": "basic"}], "event": {"id": "id", "type": "type"}}
    provider = read_provider("acme", table, "providers.acme")
    assert with_id(provider, Sample(FORM, b"id=old&type=t"), "new", split=None).body == b"id=new&type=t"
