"""API endpoints that add, rotate and remove managed sources and tenants."""

from starlette.requests import Request
from starlette.responses import Response

from oncehook.runtime.managed_changes import GRACE
from oncehook.web.api.endpoint import Endpoint, json_response, read_body, read_query
from oncehook.web.api.schemas.managed import (
    NewSource,
    NewTenant,
    Rotation,
    SourceChange,
    TenantChange,
    Tenants,
    TenantsQuery,
)
from oncehook.web.managed import changing_sources, changing_tenants, list_tenants
from oncehook.web.page import Context, Problem


async def add_source(context: Context, request: Request) -> Response:
    body = read_body(request, NewSource)
    for key in ("secrets", "provider"):
        if key in body.settings:
            raise Problem(422, "bad_body", f"The body is not valid: pass {key} next to settings, not in it.")
    settings = body.settings if body.provider is None else {**body.settings, "provider": body.provider}
    async with changing_sources(context, request) as changes:
        await changes.add(body.name, body.secrets, settings)
    return json_response({"source": body.name}, 201)


async def rotate_source(context: Context, request: Request) -> Response:
    body, name = read_rotation(request), request.path_params["source"]
    async with changing_sources(context, request) as changes:
        if body.secret is None:
            await changes.finish(name)
        else:
            await changes.rotate(name, body.secret, grace=GRACE if body.grace_seconds is None else body.grace_seconds)
    return json_response({"source": name})


async def remove_source(context: Context, request: Request) -> Response:
    name = request.path_params["source"]
    async with changing_sources(context, request) as changes:
        await changes.remove(name)
    return json_response({"source": name})


async def tenants(context: Context, request: Request) -> Response:
    query, source = read_query(request, TenantsQuery), request.path_params["source"]
    rows, more = await list_tenants(context, source, search=query.search, after=query.cursor, limit=query.limit)
    base = f"{context.receiver_url(request)}/{source}"
    return json_response({"tenants": [{**row, "address": f"{base}/{row['tenant']}"} for row in rows], "next": more})


async def add_tenant(context: Context, request: Request) -> Response:
    body = read_body(request, NewTenant)
    async with changing_tenants(context, request) as changes:
        await changes.add(body.tenant, body.secrets)
    return json_response({"source": changes.source.name, "tenant": body.tenant}, 201)


async def rotate_tenant(context: Context, request: Request) -> Response:
    body, tenant = read_rotation(request), request.path_params["tenant"]
    async with changing_tenants(context, request) as changes:
        if body.secret is None:
            await changes.finish(tenant)
        else:
            await changes.rotate(tenant, body.secret, grace=GRACE if body.grace_seconds is None else body.grace_seconds)
    return json_response({"source": changes.source.name, "tenant": tenant})


async def remove_tenant(context: Context, request: Request) -> Response:
    tenant = request.path_params["tenant"]
    async with changing_tenants(context, request) as changes:
        await changes.remove(tenant)
    return json_response({"source": changes.source.name, "tenant": tenant})


def read_rotation(request: Request) -> Rotation:
    """Read the body of a rotation. Raises Problem unless it has either a secret or `finish`."""
    body = read_body(request, Rotation)
    if body.finish == (body.secret is not None):
        raise Problem(422, "bad_body", "The body is not valid: pass the new secret, or finish = true.")
    if body.finish and body.grace_seconds is not None:
        raise Problem(422, "bad_body", "The body is not valid: grace_seconds needs a secret.")
    return body


ENDPOINTS = (
    Endpoint(
        "POST",
        "/api/sources",
        add_source,
        scope="admin",
        summary="Adds a managed source. Every process accepts its deliveries within a second.",
        body=NewSource,
        response=SourceChange,
        status=201,
    ),
    Endpoint(
        "DELETE",
        "/api/sources/{source}",
        remove_source,
        scope="admin",
        summary="Removes a managed source with its tenants, and erases their secrets. Its events stay.",
        response=SourceChange,
    ),
    Endpoint(
        "POST",
        "/api/sources/{source}/rotate",
        rotate_source,
        scope="admin",
        summary="Adds a secret to a managed source, or ends the older secrets.",
        body=Rotation,
        response=SourceChange,
    ),
    Endpoint(
        "GET",
        "/api/sources/{source}/tenants",
        tenants,
        summary="Lists the managed tenants of a source by name.",
        query=TenantsQuery,
        response=Tenants,
    ),
    Endpoint(
        "POST",
        "/api/sources/{source}/tenants",
        add_tenant,
        scope="admin",
        summary="Adds a managed tenant to a source.",
        body=NewTenant,
        response=TenantChange,
        status=201,
    ),
    Endpoint(
        "DELETE",
        "/api/sources/{source}/tenants/{tenant}",
        remove_tenant,
        scope="admin",
        summary="Removes a managed tenant and erases its secrets. Its events stay.",
        response=TenantChange,
    ),
    Endpoint(
        "POST",
        "/api/sources/{source}/tenants/{tenant}/rotate",
        rotate_tenant,
        scope="admin",
        summary="Adds a secret to a managed tenant, or ends the older secrets.",
        body=Rotation,
        response=TenantChange,
    ),
)
