"""Around every page and every endpoint: who asks, may they, and was it they who asked?

Nothing behind it is reached by a stranger, whatever the path, but the sign-in page and the static files. Every request
that is not GET or HEAD must come from a page of ours: by its `Origin`, and by the session's form token. A program's
token stands in a header that no other site can make a browser send, so it needs neither.
"""

import asyncio
import hmac
import traceback
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from oncehook.model.errors import Unavailable
from oncehook.observability import signals
from oncehook.receiver.request import Message, Receive, Scope, Send
from oncehook.web.auth import RUN, Access, Principal
from oncehook.web.hosts import is_known_host
from oncehook.web.page import ROOT, Action, Context, Problem

COOKIE = "oncehook_session"
COOKIE_OVER_HTTPS = "__Host-oncehook_session"
"""A browser takes this name only from this very host, over HTTPS: no other host of the domain can set it."""

SAFE = ("GET", "HEAD")
LARGEST = 64 * 1024
"""Bytes of a form or a JSON body."""

HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def is_api(path: str) -> bool:
    return path.startswith("/api/")


def is_open(path: str) -> bool:
    """What a stranger may ask for."""
    return path in ("/sign-in", "/favicon.ico") or path.startswith("/static/")


class Guard:
    """An ASGI app around the router: every answer leaves with the same headers, and every failure as a problem."""

    def __init__(self, app: App, context: Context) -> None:
        self.app = app
        self.context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        scope["app"] = self  # so that the router raises what it cannot answer
        started = False

        async def send_on(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = list(message["headers"])
                if not scope["path"].startswith("/static/"):
                    headers.append((b"cache-control", b"no-store"))  # what is here is not for a shared machine's disk
                message["headers"] = headers + HEADERS
            await send(message)

        try:
            refusal = await self._admit(request)
            if refusal is None:
                await self.app(scope, receive, send_on)
                return
        except ClientDisconnect:
            return
        except Exception as error:
            if started:
                raise
            refusal = self._tell(request, as_problem(error))
        await refusal(scope, receive, send_on)

    async def _admit(self, request: Request) -> Response | None:
        """Who asks is in the scope from here on; an answer for whom nothing is done."""
        principal = who(self.context.access, request)
        request.scope["principal"] = principal
        path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
        is_known = principal is not None or is_open(path)
        if is_known and request.method not in SAFE and not bearer(request):
            check_origin(request, self.context.access.settings.origin)
        if path == "/" and request.method in SAFE and request.query_params.get("token"):
            return await self._by_address(request)
        if is_known:
            return None
        if is_api(path) or request.method not in SAFE:
            raise Problem(
                401,
                "unauthenticated",
                "Sign in, or send a token: Authorization: Bearer …",
                headers={"www-authenticate": "Bearer"},
            )
        wanted = path + (f"?{query}" if query else "")
        to = "/sign-in" + (f"?next={quote(wanted)}" if wanted != "/" else "")
        shown = request.scope.get(ROOT, "") + to  # for whoever does not follow, as curl
        told = f"This is Oncehook's dashboard. Sign in first: {shown}\n"
        return Response(told, 303, {"location": to}, "text/plain")

    async def _by_address(self, request: Request) -> Response:
        """The printed address: its token becomes a session, and leaves the address bar."""
        access, address = self.context.access, self.context.client(request)
        if request.headers.get("sec-fetch-site") == "cross-site":
            raise Problem(403, "foreign_origin", "A page of another site led here. Paste the address instead.")
        if not access.is_run_token(request.query_params["token"]):
            signals.emit("sign_in_failed", address=address)
            return RedirectResponse("/sign-in?wrong=token", 303)
        await self.context.store.operations.audit(RUN, "sign_in", {"address": address})
        return signed_in(access, request, RUN, "/")

    def _tell(self, request: Request, problem: Problem) -> Response:
        if is_api(request.scope["path"]):
            body = msgspec.json.encode({"error": {"code": problem.code, "message": problem.message}})
            return Response(body, problem.status, problem.headers, "application/json")
        response = self.context.render(request, "problem.html", status=problem.status, problem=problem)
        response.headers.update(problem.headers)
        return response


def who(access: Access, request: Request) -> Principal | None:
    """By a token in the header, else by a session's cookie."""
    token = bearer(request)
    if token is not None:
        return access.by_token(token)
    cookie = request.cookies.get(cookie_name(request, access.settings.public_url))
    return access.by_session(cookie) if cookie else None


def bearer(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def check_origin(request: Request, public_origin: str | None) -> None:
    """A browser says where a request was made; one that was not made here, or does not say, is refused."""
    origin = request.headers.get("origin", "").lower()
    host = request.headers.get("host", "").lower()
    if origin not in (f"http://{host}", f"https://{host}", public_origin) or not host:
        raise Problem(403, "foreign_origin", "This request does not come from a page of this dashboard.")
    if origin != public_origin and not is_known_host(host, public_origin):
        told = f"Set dashboard.public_url to {origin}, or open the dashboard under the address of this machine."
        raise Problem(403, "foreign_origin", f"{host} is not known to be a name of this dashboard. {told}")


def signed_in(access: Access, request: Request, name: str, to: str) -> Response:
    response = RedirectResponse(to, 303)
    response.set_cookie(
        cookie_name(request, access.settings.public_url),
        access.start_session(name),
        max_age=int(access.settings.session_length),
        httponly=True,
        samesite="lax",
        secure=is_https(request, access.settings.public_url),
    )
    return response


def cookie_name(request: Request, public_url: str | None) -> str:
    return COOKIE_OVER_HTTPS if is_https(request, public_url) else COOKIE


def is_https(request: Request, public_url: str | None) -> bool:
    forwarded = request.headers.get("x-forwarded-proto", "") == "https"  # a lie harms only who tells it
    return forwarded or request.scope["scheme"] == "https" or (public_url or "").startswith("https:")


def guarded(context: Context, action: Action) -> Callable[[Request], Awaitable[Response]]:
    """The action as the router calls it: only for whom it is, and with its body read and checked."""

    async def endpoint(request: Request) -> Response:
        principal: Principal | None = request.scope["principal"]
        if action.scope is not None and (principal is None or not principal.may(action.scope)):
            raise Problem(403, "forbidden", f"This needs the scope “{action.scope}”, which you do not have.")
        if action.method not in SAFE:
            body = await read_body(request, context.runtime.settings.receive_timeout)
            if is_api(action.path):
                request.state.body = read_json(request, body)
                check_form_token(principal, request.headers.get("x-csrf-token", ""))
            else:
                request.state.form = read_form(request, body)
                check_form_token(principal, request.state.form.get("csrf", ""))
        return await action.handler(context, request)

    return endpoint


def check_form_token(principal: Principal | None, given: str) -> None:
    if (
        principal is not None
        and principal.session is not None
        and not hmac.compare_digest(given.encode("utf-8", "replace"), principal.csrf.encode())
    ):
        raise Problem(403, "form_expired", "This form is of another session. Go back, load the page again, and retry.")


async def read_body(request: Request, seconds: float) -> bytes:
    body = b""
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > LARGEST:
                    raise Problem(413, "too_large", "The body is larger than any form here.", headers=_CLOSE)
    except TimeoutError:
        raise Problem(408, "timeout", "The body did not arrive in time.", headers=_CLOSE) from None
    return body


_CLOSE = {"connection": "close"}


def read_form(request: Request, body: bytes) -> dict[str, str]:
    if _media_type(request) != "application/x-www-form-urlencoded":
        raise Problem(415, "unsupported_media_type", "Send a form: application/x-www-form-urlencoded.")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise Problem(400, "malformed", "The form cannot be read.") from None


def read_json(request: Request, body: bytes) -> bytes:
    if body and _media_type(request) != "application/json":
        raise Problem(415, "unsupported_media_type", "Send JSON: application/json.")
    return body


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def as_problem(error: Exception) -> Problem:
    """What may be told of an error: ours as they are, others not at all."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Unavailable):
        signals.emit("dashboard_database_unavailable", detail=error.detail)
        told = "The database does not answer now. Try again."
        return Problem(503, "unavailable", told, headers={"retry-after": str(error.retry_after)})
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "malformed")
        sentences = {404: "There is nothing at this address.", 405: "This address is not asked that way."}
        told = sentences.get(error.status_code, "It cannot be read.")
        return Problem(error.status_code, code, told, headers=error.headers)
    where = "".join(traceback.format_tb(error.__traceback__))
    signals.emit("dashboard_failed", error=type(error).__name__, traceback=where)
    return Problem(500, "internal", "This is a bug of Oncehook's own; the log has where. Please report it.")
