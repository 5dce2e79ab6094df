"""The types that a payload can be decoded to."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from oncehook.handlers.payload_types import decode_model, has_nested, inspect_type, is_data


class Struct(msgspec.Struct):
    id: str
    parent: "Struct | None" = None


@dataclass
class Data:
    id: str


class Typed(TypedDict):
    id: str


class Model(pydantic.BaseModel):
    id: str


@pydantic.dataclasses.dataclass
class PydanticData:
    id: str


class Service:
    pass


@pytest.mark.parametrize(
    "hint", [Struct, Data, Typed, Model, dict[str, Any], list[int], Struct | None, tuple[int, ...]]
)
def test_type_of_a_json_object_or_array_is_a_container(hint: Any) -> None:
    assert inspect_type(hint) is True


@pytest.mark.parametrize("hint", [str, int, datetime, Any, object, str | int, list[int] | str])
def test_type_that_may_be_a_string_is_not_a_container(hint: Any) -> None:
    assert inspect_type(hint) is False


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (Service, "Service is not a struct, dataclass, TypedDict, pydantic model or built-in type"),
        (list[Service], "Service is not a struct"),
        (PydanticData, "PydanticData is a pydantic dataclass: use a pydantic model"),
    ],
)
def test_type_that_cannot_be_decoded_is_an_error(hint: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        inspect_type(hint)


@pytest.mark.parametrize("hint", [Struct, Data, Model, str, dict, Annotated[Data, "x"], Data | None])
def test_models_and_built_in_types_are_data(hint: Any) -> None:
    assert is_data(hint)


@pytest.mark.parametrize("hint", [Service, Any, object, None, "Connection"])
def test_other_types_may_be_a_transaction(hint: Any) -> None:
    assert not is_data(hint)


def test_pydantic_model_validates_the_value_itself() -> None:
    assert decode_model(Model, {"id": "in_1"}) == Model(id="in_1")
    with pytest.raises(pydantic.ValidationError):
        decode_model(Model, {})
    assert decode_model(object, {"id": 1}) == {"id": 1}


def test_marker_is_found_at_any_depth_of_an_annotation() -> None:
    marker = object()
    assert has_nested(list[Annotated[int, marker]], lambda part: part is marker)
    assert has_nested(dict[str, list[Annotated[int, marker]] | None], lambda part: part is marker)
    assert not has_nested(list[int], lambda part: part is marker)
