"""Types that several parameters and fields share."""

from typing import get_args

import msgspec
import pytest

from oncehook.model.effect import EffectState
from oncehook.model.states import State
from oncehook.web.api.schemas.values import Cursor, EffectStateName, Number, StateName, Text, Time


def test_names_of_states_are_those_of_the_model() -> None:
    assert set(get_args(StateName)) == set(State) and set(get_args(EffectStateName)) == set(EffectState)


@pytest.mark.parametrize(("kind", "longest"), [(Text, 500), (Cursor, 200), (Time, 40)])
def test_texts_have_a_maximum_length(kind: object, longest: int) -> None:
    assert msgspec.convert("x" * longest, kind) == "x" * longest
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert("x" * (longest + 1), kind)


def test_number_is_up_to_18_digits_or_empty() -> None:
    for text in ("", "0", "9" * 18):
        assert msgspec.convert(text, Number) == text
    for text in ("x", "-1", "9" * 19):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(text, Number)
