"""Endpoints: typed queries and bodies, and problems in one shape."""

import json

import httpx
import pytest
from msgspec import Struct
from starlette.requests import Request

from oncehook.web.api.endpoint import json_response, read_body, read_query
from oncehook.web.page import Problem

pytestmark = pytest.mark.anyio


class Query(Struct):
    """A query with a required text and a number."""

    name: str
    limit: int = 50


def make_query(text: str) -> Request:
    return Request({"type": "http", "query_string": text.encode(), "headers": []})


def make_body(content: bytes) -> Request:
    request = Request({"type": "http", "headers": []})
    request.state.body = content
    return request


def test_query_is_converted_to_the_declared_types() -> None:
    assert read_query(make_query("name=a&limit=5"), Query) == Query("a", 5)
    assert read_query(make_query("name=a"), Query) == Query("a", 50)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name=a&x=1", "Unknown parameter x. Use: limit, name."),
        ("limit=5", "A parameter is not valid: .*name"),
        ("name=a&limit=many", "A parameter is not valid: .*limit"),
    ],
)
def test_invalid_query_is_a_problem_that_names_the_parameter(text: str, message: str) -> None:
    with pytest.raises(Problem, match=message) as error:
        read_query(make_query(text), Query)
    assert (error.value.status, error.value.code) == (422, "bad_query")


def test_body_that_is_not_json_or_not_valid_is_a_problem() -> None:
    assert read_body(make_body(b'{"name": "a"}'), Query) == Query("a")
    with pytest.raises(Problem, match="The body is not JSON") as malformed:
        read_body(make_body(b"{"), Query)
    with pytest.raises(Problem, match="The body is not valid: ") as invalid:
        read_body(make_body(b'{"name": 5}'), Query)
    assert (malformed.value.status, invalid.value.status) == (400, 422)


def test_response_is_json_and_unknown_types_become_text() -> None:
    response = json_response({"n": 1.5, "x": ValueError("wrong")}, 202)
    assert response.status_code == 202 and response.media_type == "application/json"
    assert json.loads(bytes(response.body)) == {"n": 1.5, "x": "wrong"}


@pytest.mark.parametrize(
    ("content", "media_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 422),
        (b'{"status": 5}', "application/json", 422),
        (b'{"nothing": 5}', "application/json", 422),
        (b'{"since": "never"}', "application/json", 422),
        (b"status=failed", "application/x-www-form-urlencoded", 415),
        (b'{"status": "failed"}', "text/plain", 415),
        (b" " * 70_000, "application/json", 413),
        (b'{"type": "\\ud800"}', "application/json", 400),
        (b"[" * 50_000, "application/json", 422),
    ],
)
async def test_rejected_body_is_a_problem_in_one_shape(
    program: httpx.AsyncClient, content: bytes, media_type: str, status: int
) -> None:
    response = await program.post("/api/replays", content=content, headers={"content-type": media_type})
    assert response.status_code == status
    assert set(response.json()) == {"error"} and set(response.json()["error"]) == {"code", "message"}


async def test_unknown_status_is_answered_with_the_allowed_statuses(program: httpx.AsyncClient) -> None:
    body = await program.post("/api/replays", json={"status": "procesed"})
    message = body.json()["error"]["message"]
    assert body.status_code == 422 and "did you mean processed?" in message and "failed, " in message
    query = await program.get("/api/events?status=nope")
    assert query.status_code == 422 and "failed, ignored, " in query.json()["error"]["message"]
