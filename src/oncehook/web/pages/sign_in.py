"""Signing in and out, and the stream that keeps pages current: what belongs to no page of its own."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from oncehook.observability import signals
from oncehook.web.auth import PACE, Busy
from oncehook.web.guard import cookie_name, is_https, signed_in
from oncehook.web.page import Action, Context, Page, Problem, form, principal

LONGEST = 1024


async def show(context: Context, request: Request) -> Response:
    if request.scope["principal"] is not None:
        return RedirectResponse("/", 303)
    return _form(context, request, request.query_params.get("next", ""), wrong="wrong" in request.query_params)


def _form(context: Context, request: Request, wanted: str, *, wrong: bool = False, status: int = 200) -> Response:
    access = context.access
    return context.render(
        request, "sign_in.html", status=status, next=wanted, wrong=wrong, has_users=access.has_users, run=access.is_open
    )


async def sign_in(context: Context, request: Request) -> Response:
    """By name and password, or by a token. Which part was wrong is not told."""
    given, access = form(request), context.access
    address = context.client(request)
    key = (address, given.get("name", "")[:LONGEST] if not given.get("token") else "")
    try:
        await access.throttle.wait(key)
        who = await _who(context, given, address)
    except Busy:
        told = "Too many sign-ins at once. Try again in a moment."
        raise Problem(429, "too_many_tries", told, headers={"retry-after": str(round(PACE))}) from None
    if who is None:
        access.throttle.failed(key)
        signals.emit("sign_in_failed", address=address)
        return _form(context, request, given.get("next", ""), wrong=True, status=401)
    access.throttle.succeeded(key)
    await context.store.operations.audit(who, "sign_in", {"address": address})
    return signed_in(access, request, who, _local(given.get("next", "")))


async def _who(context: Context, given: dict[str, str], address: str) -> str | None:
    if given.get("token"):
        found = context.access.by_token(given["token"].strip()[:LONGEST])
        return found.name if found else None
    name, password = (given.get(field, "")[:LONGEST] for field in ("name", "password"))
    return await context.access.by_password(name, password, address)


def _local(address: str) -> str:
    """A path of ours; anything that could lead elsewhere is the first page."""
    sound = address.startswith("/") and not address.startswith(("//", "/\\")) and address.isprintable()
    return address if sound else "/"


async def sign_out(context: Context, request: Request) -> Response:
    context.access.end_session(principal(request))
    response = RedirectResponse("/sign-in", 303)
    public_url = context.access.settings.public_url
    response.delete_cookie(cookie_name(request, public_url), secure=is_https(request, public_url), httponly=True)
    return response


async def live(context: Context, request: Request) -> Response:
    if context.live.is_full:
        raise Problem(503, "unavailable", "Too many pages are open.", headers={"retry-after": "30"})
    stream = context.live.stream(request.headers.get("last-event-id"))
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
