"""Forms of managed sources and tenants: their fields, and the problems of changes that are refused."""

import pytest

from oncehook.model.errors import ConfigurationError
from oncehook.runtime.managed_changes import KeyNeeded, NameTaken, UnknownName
from oncehook.web.managed import GRACES, _problems, grace_of, secret_of
from oncehook.web.page import Problem


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (UnknownName("no such name"), 404),
        (NameTaken("the name is taken"), 409),
        (KeyNeeded("a key is needed"), 409),
        (ConfigurationError("it is wrong: did you mean a?"), 422),
    ],
)
def test_refusal_becomes_a_problem_with_a_sentence(error: ConfigurationError, status: int) -> None:
    with pytest.raises(Problem) as raised, _problems():
        raise error
    assert raised.value.status == status and raised.value.message[0].isupper() and raised.value.message[-1] in ".?"


def test_name_of_a_setting_is_not_capitalized() -> None:
    with pytest.raises(Problem, match=r"^sources\.acme\.mode"), _problems():
        raise ConfigurationError("sources.acme.mode is wrong")


def test_secret_of_a_form_is_required_and_bounded() -> None:
    assert secret_of({"secret": " whsec_x\n"}) == "whsec_x"
    for secret in ("", "  ", "x" * 20_001, "a\0b"):
        with pytest.raises(Problem):
            secret_of({"secret": secret})


def test_grace_is_one_of_those_that_the_form_offers() -> None:
    assert grace_of({}) == 86400.0 and [grace_of({"grace": grace}) for grace in GRACES] == [86400, 604800, 3600, 0]
    with pytest.raises(Problem):
        grace_of({"grace": "-1"})
