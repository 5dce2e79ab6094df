"""Endpoints of the API. The declared types check the query and the body, and describe them in the OpenAPI document."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from oncehook.model.states import State
from oncehook.model.values import with_allowed
from oncehook.web.page import Action, Handler, Problem

T = TypeVar("T")
_encode = msgspec.json.Encoder(enc_hook=str).encode


@dataclass(frozen=True, slots=True)
class Endpoint(Action):
    """One path and method of the API."""

    summary: str = ""
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    response: type[msgspec.Struct] | None = None  # None: bytes
    status: int = 200


def json_response(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status, media_type="application/json")


def read_query(request: Request, kind: type[T]) -> T:
    """Parse the query parameters. Raises Problem that names the invalid parameter."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)}  # type: ignore[arg-type]
    for name in request.query_params:
        if name not in known:
            raise Problem(422, "bad_query", f"Unknown parameter {name[:100]}. Use: {', '.join(sorted(known))}.")
    return _convert(dict(request.query_params), kind, strict=False)


def read_body(request: Request, kind: type[T]) -> T:
    """Parse the JSON body. Raises Problem if it does not match the declared type."""
    try:
        return msgspec.json.decode(request.state.body, type=kind)
    except msgspec.ValidationError as error:
        raise Problem(422, "bad_body", f"The body is not valid: {with_allowed(str(error), kind)}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Problem(400, "malformed", "The body is not JSON.") from None


def _convert(parameters: Mapping[str, str], kind: type[T], *, strict: bool) -> T:
    try:
        return msgspec.convert(parameters, kind, strict=strict)
    except msgspec.ValidationError as error:
        raise Problem(422, "bad_query", f"A parameter is not valid: {with_allowed(str(error), kind)}.") from None


__all__ = ["Endpoint", "Handler", "State", "json_response", "read_body", "read_query"]
