"""Managed sources and tenants in requests and responses."""

from typing import Any

import msgspec
import pytest

from oncehook.web.api.schemas.managed import NewSource, NewTenant, Rotation, Tenants, TenantsQuery, TenantState
from tests.support.api_schemas import assert_rejects, schema_of


def test_new_source_needs_only_a_name() -> None:
    source = msgspec.convert({"name": "acme"}, NewSource)
    assert (source.provider, source.secrets, source.settings) == (None, [], {})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (NewSource, {}),
        (NewSource, {"name": ""}),
        (NewSource, {"name": "a", "secret": "x"}),
        (NewSource, {"name": "a", "secrets": ["x"] * 17}),
        (NewTenant, {"tenant": ""}),
        (NewTenant, {"tenant": "a", "secrets": [""]}),
        (NewTenant, {"tenant": "a", "source": "b"}),
        (Rotation, {"secret": "x" * 20_001}),
        (Rotation, {"grace_seconds": -1}),
        (Rotation, {"finish": "yes"}),
        (TenantsQuery, {"limit": 0}),
        (TenantsQuery, {"limit": 501}),
        (TenantsQuery, {"search": "x" * 201}),
    ],
)
def test_request_rejects_unknown_fields_and_sizes(kind: type[msgspec.Struct], value: dict[str, Any]) -> None:
    assert_rejects(kind, value)


def test_response_has_no_field_for_a_secret() -> None:
    assert set(schema_of(TenantState)["required"]) == set(TenantState.__struct_fields__)
    assert "value" not in str(schema_of(TenantState)) and set(schema_of(Tenants)["required"]) == {"tenants", "next"}
