"""HTTP basic authentication."""

import pytest

from oncehook.model.delivery import Delivery
from oncehook.model.errors import ConfigurationError
from tests.support.providers import (
    NOW,
    make_verifier,
    rejection_reason,
)

BODY = b'{"id":"evt_1","type":"paid"}'


@pytest.mark.parametrize(
    "value",
    [
        "Basic",
        "Basic ",
        "Bearer dTpw",
        "dTpw",
        "Basic dTpw,Basic dTpw",
        "Basic dTp3",
        "Basic dTpw\x00",
        "Basic dT pw",
        "Basic ZHU6cA==",
    ],
)
def test_basic_authentication_must_match_completely(value: str) -> None:
    assert make_verifier("postmark", "u:p").verify(Delivery.of(BODY, {"Authorization": "bAsIc  dTpw "}), NOW) == 0
    assert (
        rejection_reason(make_verifier("postmark", "u:p"), Delivery.of(BODY, {"Authorization": value}))
        == "bad_signature"
    )


@pytest.mark.parametrize("secret", ["user", "user:", ":password", " : ", ":", "user: "])
def test_secret_without_user_and_password_is_a_configuration_error(secret: str) -> None:
    with pytest.raises(ConfigurationError, match="it is not user:password"):
        make_verifier("postmark", secret)
