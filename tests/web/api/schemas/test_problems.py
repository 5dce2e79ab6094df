"""The shape of every error response."""

import msgspec

from oncehook.web.api.schemas.problems import Error, ProblemResponse
from tests.support.api_schemas import assert_rejects, schema_of


def test_error_has_a_code_and_a_message() -> None:
    body = msgspec.json.encode(ProblemResponse(Error("not_found", "Event not found.")))
    assert body == b'{"error":{"code":"not_found","message":"Event not found."}}'


def test_code_and_message_are_required() -> None:
    assert schema_of(ProblemResponse)["required"] == ["error"]
    assert_rejects(ProblemResponse, {"error": {"code": "not_found"}})
    assert_rejects(ProblemResponse, {"error": "not_found"})
