"""The names of tenants, and the limits of a source with tenants."""

from typing import Any

import pytest

from oncehook.model.tenant import TENANT_NAME, TenantLimits, tenant_limits


@pytest.mark.parametrize("name", ["acme", "A", "0", "acct_1.x~y-z", "a" * 128])
def test_tenant_name_has_only_characters_that_a_url_does_not_escape(name: str) -> None:
    assert TENANT_NAME.fullmatch(name)


@pytest.mark.parametrize("name", ["", ".", "-a", "a/b", "a b", "a%2Fb", "é", "a" * 129, "a\n", "a\x00", ".."])
def test_any_other_name_is_not_a_tenant(name: str) -> None:
    assert not TENANT_NAME.fullmatch(name)


def test_table_sets_some_limits_and_the_others_keep_their_defaults() -> None:
    assert tenant_limits({"ttl": "5m", "rate": "120/m", "lookups": "10/s", "cache": 5}) == TenantLimits(
        ttl=300.0, rate=2.0, lookups=10.0, cache=5
    )
    assert tenant_limits(True) == TenantLimits() == tenant_limits({})
    assert tenant_limits(False) is None


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("yes", "expected true, or a table"),
        ({"size": 5}, "size is not a field of it; the fields are cache, ttl"),
        ({"cache": 0}, "cache: expected more than 0"),
        ({"ttl": "0s"}, "ttl: expected more than 0"),
        ({"lookups": "many"}, "lookups: expected a rate such as 50/s"),
    ],
)
def test_invalid_limit_is_an_error_that_names_it(value: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        tenant_limits(value)
