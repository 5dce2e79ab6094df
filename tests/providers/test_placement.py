"""Putting a signature into a JSON body."""

from typing import Any

import pytest

from oncehook.providers.placement import json_object, set_at


def test_body_that_is_an_object_is_parsed() -> None:
    assert json_object(b'{"a":1}') == {"a": 1}


@pytest.mark.parametrize("body", [b"[]", b"1", b'"text"', b"null"])
def test_body_that_is_not_an_object_cannot_carry_a_signature(body: bytes) -> None:
    with pytest.raises(ValueError, match="the body must be a JSON object"):
        json_object(body)


def test_value_is_set_at_a_path_and_missing_objects_are_created() -> None:
    table: dict[str, Any] = {"a": {"b": 1}}
    set_at(table, "a.c.d", "signature")
    set_at(table, "e", "top")
    assert table == {"a": {"b": 1, "c": {"d": "signature"}}, "e": "top"}


@pytest.mark.parametrize("value", [1, "text", [], None])
def test_value_cannot_be_set_below_another_kind_of_value(value: object) -> None:
    with pytest.raises(ValueError, match=r"the signature cannot be set at a\.b"):
        set_at({"a": value}, "a.b", "signature")
