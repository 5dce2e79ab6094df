"""The OpenAPI document, generated from the endpoints."""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from oncehook import __version__
from oncehook.web.api.endpoint import Endpoint, json_response
from oncehook.web.api.schemas.problems import ProblemResponse
from oncehook.web.page import Context

REF = "#/components/schemas/{name}"
PATH_PARAMETERS: dict[str, dict[str, Any]] = {
    "receipt": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
    "effect": {"type": "integer", "minimum": 0, "maximum": 10**18 - 1},
    "source": {"type": "string", "minLength": 1, "maxLength": 100, "pattern": "^[a-z0-9_-]+$"},
    "tenant": {"type": "string", "minLength": 1, "maxLength": 128, "pattern": "^[A-Za-z0-9][A-Za-z0-9._~-]*$"},
    "consumer": {"type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9][a-z0-9_-]*$"},
    "run": {"type": "string", "pattern": "^[0-9a-f]{16}$"},
}
PROBLEMS = {
    "400": "The request is malformed.",
    "401": "The token is missing or not valid.",
    "403": "The token lacks the scope, or the request comes from another site.",
    "404": "Not found.",
    "409": "The current state does not allow this.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "422": "A parameter or the body is not valid.",
    "503": "The database is not available.",
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """An OpenAPI 3.1 document of the endpoints and their types."""
    kinds = [kind for e in endpoints for kind in (e.body, e.response) if kind is not None] + [ProblemResponse]
    _, components = msgspec.json.schema_components(list(dict.fromkeys(kinds)), ref_template=REF)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Oncehook",
            "version": __version__,
            "description": "Events that the inbox received, how they were handled, and their effects.",
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "description": f"Requires the scope `{endpoint.scope}`.",
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method.lower()}{endpoint.path.removeprefix('/api')}").strip("_"),
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": PATH_PARAMETERS[name]}
                for name in re.findall(r"{(\w+)}", endpoint.path)
            ),
            *_query(endpoint.query),
        ],
        "responses": {**_responses(endpoint), **{code: _problem(text) for code, text in PROBLEMS.items()}},
    }
    if endpoint.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(endpoint.body.__name__)}
    return operation


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.response is None:
        content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    else:
        content = _json(endpoint.response.__name__)
    codes = sorted({200, endpoint.status})
    return {str(code): {"description": endpoint.summary, "content": content} for code in codes}


def _query(kind: type[msgspec.Struct] | None) -> list[dict[str, Any]]:
    if kind is None:
        return []
    _, components = msgspec.json.schema_components([kind], ref_template=REF)
    declared = components[kind.__name__]
    required = declared.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in declared["properties"].items()
    ]


def _problem(description: str) -> dict[str, Any]:
    return {"description": description, "content": _json("ProblemResponse")}


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REF.format(name=name)}}}


async def show(context: Context, request: Request) -> Response:
    from oncehook.web.api import ENDPOINTS  # a cycle: ENDPOINTS includes this one

    return json_response(
        _cached_document(tuple(endpoint for endpoint in ENDPOINTS if endpoint.path != "/api/openapi.json"))
    )


_cached_document = cache(document)
ENDPOINTS = (Endpoint("GET", "/api/openapi.json", show, summary="Returns this document.", response=None),)
