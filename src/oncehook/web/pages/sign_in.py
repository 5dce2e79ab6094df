"""The sign-in page, signing out, and the stream of live updates."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from oncehook.observability import signals
from oncehook.web.auth import THROTTLE_INTERVAL, Busy
from oncehook.web.guard import cookie_name, is_https, start_session
from oncehook.web.page import Action, Context, Page, Problem, form, principal

MAX_LENGTH = 1024


async def show(context: Context, request: Request) -> Response:
    if request.scope["principal"] is not None:
        return RedirectResponse("/", 303)
    return _form(context, request, request.query_params.get("next", ""), wrong="wrong" in request.query_params)


def _form(context: Context, request: Request, target: str, *, wrong: bool = False, status: int = 200) -> Response:
    access = context.access
    return context.render(
        request,
        "sign_in.html",
        status=status,
        next=target,
        wrong=wrong,
        has_users=access.has_users,
        uses_run_token=access.uses_run_token,
    )


async def sign_in(context: Context, request: Request) -> Response:
    """Sign in with a name and password, or with a token. The response never says which part was wrong."""
    fields, access = form(request), context.access
    address = context.client_address(request)
    key = (address, fields.get("name", "")[:MAX_LENGTH] if not fields.get("token") else "")
    try:
        await access.throttle.wait(key)
        name = await _authenticate(context, fields, address)
    except Busy:
        headers = {"retry-after": str(round(THROTTLE_INTERVAL))}
        raise Problem(429, "too_many_tries", "Too many sign-in attempts. Try again later.", headers=headers) from None
    if name is None:
        access.throttle.failed(key)
        signals.emit("sign_in_failed", address=address)
        return _form(context, request, fields.get("next", ""), wrong=True, status=401)
    access.throttle.succeeded(key)
    await context.store.operations.audit(name, "sign_in", {"address": address})
    return start_session(access, request, name, _local_path(fields.get("next", "")))


async def _authenticate(context: Context, fields: dict[str, str], address: str) -> str | None:
    """Return the name of the principal, or None."""
    if fields.get("token"):
        token_principal = context.access.check_token(fields["token"].strip()[:MAX_LENGTH])
        return token_principal.name if token_principal else None
    name, password = (fields.get(field, "")[:MAX_LENGTH] for field in ("name", "password"))
    return await context.access.check_password(name, password, address)


def _local_path(path: str) -> str:
    """The path to redirect to; `/` for anything that could lead to another site."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local else "/"


async def sign_out(context: Context, request: Request) -> Response:
    context.access.end_session(principal(request))
    response = RedirectResponse("/sign-in", 303)
    public_url = context.access.settings.public_url
    response.delete_cookie(cookie_name(request, public_url), secure=is_https(request, public_url), httponly=True)
    return response


async def live(context: Context, request: Request) -> Response:
    if context.live.is_full:
        raise Problem(503, "unavailable", "Too many dashboard pages are open.", headers={"retry-after": "30"})
    seen = request.headers.get("last-event-id", request.query_params.get("seen"))
    stream = context.live.stream(seen)
    return StreamingResponse(stream, media_type="text/event-stream")


PAGE = Page(
    "Sign in",
    "/sign-in",
    (
        Action("GET", "/sign-in", show, scope=None),
        Action("POST", "/sign-in", sign_in, scope=None),
        Action("POST", "/sign-out", sign_out),
        Action("GET", "/live", live),
    ),
)
