"""The page of a source's managed tenants: search, add, rotate, remove."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from oncehook.web.managed import GRACES, changing_tenants, grace_of, list_tenants, secret_of
from oncehook.web.page import Action, Context, Page, Problem, check_texts, form

LIMIT = 50


async def show(context: Context, request: Request) -> Response:
    return await _render(context, request)


async def _render(
    context: Context, request: Request, *, problem: Problem | None = None, values: dict[str, str] | None = None
) -> Response:
    """The page. With `problem`, it explains why a change failed; `values` are the fields of the form."""
    source, query = request.path_params["source"], request.query_params
    search, after = query.get("search", "").strip(), query.get("after", "")
    rows, more = await list_tenants(context, source, search=search, after=after, limit=LIMIT)
    return context.render(
        request,
        "tenants.html",
        status=200 if problem is None else problem.status,
        source=source,
        rows=rows,
        more=more,
        search=search,
        is_first=not after,
        base=context.receiver_url(request),
        graces=GRACES,
        done=query.get("done"),
        problem=problem,
        values=values or {},
    )


async def add(context: Context, request: Request) -> Response:
    fields = form(request)
    tenant = fields.get("tenant", "").strip()
    check_texts({"tenant": tenant})
    try:
        async with changing_tenants(context, request) as changes:
            await changes.add(tenant, [secret_of(fields)])
    except Problem as problem:
        return await _render(context, request, problem=problem, values={"tenant": tenant})
    return _done(request, "added", tenant)


async def rotate(context: Context, request: Request) -> Response:
    fields, tenant = form(request), request.path_params["tenant"]
    try:
        async with changing_tenants(context, request) as changes:
            await changes.rotate(tenant, secret_of(fields), grace=grace_of(fields))
    except Problem as problem:
        return await _render(context, request, problem=problem)
    return _done(request, "rotated", tenant)


async def finish(context: Context, request: Request) -> Response:
    tenant = request.path_params["tenant"]
    try:
        async with changing_tenants(context, request) as changes:
            await changes.finish(tenant)
    except Problem as problem:
        return await _render(context, request, problem=problem)
    return _done(request, "finished", tenant)


async def remove(context: Context, request: Request) -> Response:
    try:
        async with changing_tenants(context, request) as changes:
            await changes.remove(request.path_params["tenant"])
    except Problem as problem:
        return await _render(context, request, problem=problem)
    return _done(request, "removed", "")


def _done(request: Request, result: str, search: str) -> Response:
    source = quote(request.path_params["source"])
    return RedirectResponse(f"/sources/{source}/tenants?done={result}&search={quote(search)}", 303)


PAGE = Page(
    "Tenants",
    "/sources/{source}/tenants",
    (
        Action("GET", "/sources/{source}/tenants", show),
        Action("POST", "/sources/{source}/tenants", add, scope="admin"),
        Action("POST", "/sources/{source}/tenants/{tenant}/rotate", rotate, scope="admin"),
        Action("POST", "/sources/{source}/tenants/{tenant}/finish", finish, scope="admin"),
        Action("POST", "/sources/{source}/tenants/{tenant}/remove", remove, scope="admin"),
    ),
)
