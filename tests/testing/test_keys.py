"""New secrets and key pairs for tests."""

import pytest

from oncehook import ConfigurationError
from oncehook.testing import (
    make_pair,
)


@pytest.mark.parametrize("name", ["paypal", "stripe"])
def test_pair_is_made_for_the_name_of_a_provider(name: str) -> None:
    pair = make_pair(name)
    assert pair.signing and pair.verifying and (pair.signing == pair.verifying) is (name == "stripe")
    with pytest.raises(ConfigurationError, match="strip"):
        make_pair("strip")
