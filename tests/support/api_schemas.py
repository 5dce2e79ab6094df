"""Checks that the tests of the API's schemas share."""

from typing import Any

import msgspec

REF = "#/{name}"


def schema_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of a type, as the OpenAPI document has it."""
    _, components = msgspec.json.schema_components([kind], ref_template=REF)
    return dict(components[kind.__name__])


def assert_rejects(kind: type[msgspec.Struct], value: dict[str, Any]) -> None:
    """Fails unless the type rejects `value`."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return
    raise AssertionError(f"{kind.__name__} must reject {value!r}")
