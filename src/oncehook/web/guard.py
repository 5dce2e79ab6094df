"""Authentication, authorization and CSRF protection around every page and endpoint.

Without credentials, a client reaches only the sign-in page and the static files. A request that is not GET or HEAD must
come from a page of this dashboard: the guard checks its `Origin` header and the session's form token. A bearer token
needs neither, because another site cannot make a browser send that header.
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
from oncehook.web.auth import RUN_PRINCIPAL, Access, Principal
from oncehook.web.hosts import is_known_host
from oncehook.web.page import ROOT, SEEN, Action, Context, Problem

COOKIE = "oncehook_session"
COOKIE_OVER_HTTPS = "__Host-oncehook_session"
"""Browsers accept a `__Host-` cookie only from this exact host over HTTPS. Other hosts of the domain cannot set it."""

SAFE = ("GET", "HEAD")
MAX_BODY = 64 * 1024
"""Maximum bytes of a form or a JSON body."""

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


def is_public(path: str) -> bool:
    """Whether the path needs no authentication."""
    return path in ("/sign-in", "/favicon.ico") or path.startswith("/static/")


class Guard:
    """An ASGI app around the router. It adds security headers and turns every exception into a Problem response."""

    def __init__(self, app: App, context: Context) -> None:
        self.app = app
        self.context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        scope["app"] = self  # makes the router raise HTTPException instead of responding itself
        started = False

        async def send_on(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = list(message["headers"])
                if not scope["path"].startswith("/static/"):
                    headers.append((b"cache-control", b"no-store"))  # pages hold payloads: keep them out of caches
                message["headers"] = headers + HEADERS
            await send(message)

        try:
            response = await self._admit(request)
            if response is None:
                await self.app(scope, receive, send_on)
                return
        except ClientDisconnect:
            return
        except Exception as error:
            if started:
                raise
            response = self._problem_response(request, as_problem(error))
        await response(scope, receive, send_on)

    async def _admit(self, request: Request) -> Response | None:
        """Put the principal into the scope. Returns None to admit the request, or the response that ends it."""
        principal = authenticate(self.context.access, request)
        request.scope["principal"] = principal
        path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
        is_admitted = principal is not None or is_public(path)
        if is_admitted and request.method not in SAFE and not bearer(request):
            check_origin(request, self.context.access.settings.origin)
        if path == "/" and request.method in SAFE and request.query_params.get("token"):
            return await self._sign_in_by_url(request)
        if is_admitted:
            return None
        if is_api(path) or request.method not in SAFE:
            raise Problem(
                401,
                "unauthenticated",
                "Sign in, or send a token: Authorization: Bearer …",
                headers={"www-authenticate": "Bearer"},
            )
        target = path + (f"?{query}" if query else "")
        sign_in = "/sign-in" + (f"?next={quote(target)}" if target != "/" else "")
        text = f"This is the Oncehook dashboard. Sign in at {request.scope.get(ROOT, '')}{sign_in}\n"  # for curl
        return Response(text, 303, {"location": sign_in}, "text/plain")

    async def _sign_in_by_url(self, request: Request) -> Response:
        """Sign in with the URL that `serve` printed, and redirect so that the token leaves the address bar."""
        access, address = self.context.access, self.context.client_address(request)
        if request.headers.get("sec-fetch-site") == "cross-site":
            raise Problem(
                403,
                "foreign_origin",
                "This link was opened from another site. Paste the URL into the address bar instead.",
            )
        if not access.is_run_token(request.query_params["token"]):
            signals.emit("sign_in_failed", address=address)
            return RedirectResponse("/sign-in?wrong=token", 303)
        await self.context.store.operations.audit(RUN_PRINCIPAL, "sign_in", {"address": address})
        return start_session(access, request, RUN_PRINCIPAL, "/")

    def _problem_response(self, request: Request, problem: Problem) -> Response:
        if is_api(request.scope["path"]):
            body = msgspec.json.encode({"error": {"code": problem.code, "message": problem.message}})
            return Response(body, problem.status, problem.headers, "application/json")
        response = self.context.render(request, "problem.html", status=problem.status, problem=problem)
        response.headers.update(problem.headers)
        return response


def authenticate(access: Access, request: Request) -> Principal | None:
    """Authenticate by the bearer token, else by the session cookie."""
    token = bearer(request)
    if token is not None:
        return access.check_token(token)
    cookie = request.cookies.get(cookie_name(request, access.settings.public_url))
    return access.check_session(cookie) if cookie else None


def bearer(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def check_origin(request: Request, public_origin: str | None) -> None:
    """Reject a request whose `Origin` header is missing or names another site."""
    origin = request.headers.get("origin", "").lower()
    host = request.headers.get("host", "").lower()
    if origin not in (f"http://{host}", f"https://{host}", public_origin) or not host:
        raise Problem(403, "foreign_origin", "This request was not sent from a page of this dashboard.")
    if origin != public_origin and not is_known_host(host, public_origin):
        remedy = f"Set dashboard.public_url to {origin}, or open the dashboard by IP address."
        raise Problem(403, "foreign_origin", f"{host} is not a configured host name of this dashboard. {remedy}")


def start_session(access: Access, request: Request, name: str, to: str) -> Response:
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
    forwarded = (
        request.headers.get("x-forwarded-proto", "") == "https"
    )  # a client that forges it affects only its own cookie
    return forwarded or request.scope["scheme"] == "https" or (public_url or "").startswith("https:")


def guarded(context: Context, action: Action) -> Callable[[Request], Awaitable[Response]]:
    """Wrap an action for the router: check the scope, read the body and check the form token."""

    async def endpoint(request: Request) -> Response:
        principal: Principal | None = request.scope["principal"]
        if action.scope is not None and (principal is None or not principal.may(action.scope)):
            raise Problem(403, "forbidden", f"Your account does not have the scope “{action.scope}”.")
        if action.method not in SAFE:
            body = await read_body(request, context.runtime.settings.receive_timeout)
            if is_api(action.path):
                request.state.body = read_json(request, body)
                check_form_token(principal, request.headers.get("x-csrf-token", ""))
            else:
                request.state.form = read_form(request, body)
                check_form_token(principal, request.state.form.get("csrf", ""))
        request.scope[SEEN] = context.live.token  # before the action reads the database
        try:
            return await action.handler(context, request)
        finally:
            if action.method not in SAFE and context.runtime.replica is not None:
                context.runtime.replica.monitor.note_change()  # the next page shows the change

    return endpoint


def check_form_token(principal: Principal | None, token: str) -> None:
    if (
        principal is not None
        and principal.session is not None
        and not hmac.compare_digest(token.encode("utf-8", "replace"), principal.csrf.encode())
    ):
        raise Problem(
            403, "form_expired", "This form belongs to an expired session. Go back, reload the page and try again."
        )


async def read_body(request: Request, seconds: float) -> bytes:
    body = b""
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY:
                    raise Problem(413, "too_large", "The request body is too large.", headers=_CLOSE)
    except TimeoutError:
        raise Problem(408, "timeout", "The request body did not arrive in time.", headers=_CLOSE) from None
    return body


_CLOSE = {"connection": "close"}


def read_form(request: Request, body: bytes) -> dict[str, str]:
    if _media_type(request) != "application/x-www-form-urlencoded":
        raise Problem(415, "unsupported_media_type", "Send a form: application/x-www-form-urlencoded.")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100))
    except ValueError:
        raise Problem(400, "malformed", "The form is malformed.") from None


def read_json(request: Request, body: bytes) -> bytes:
    if body and _media_type(request) != "application/json":
        raise Problem(415, "unsupported_media_type", "Send JSON: application/json.")
    return body


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def as_problem(error: Exception) -> Problem:
    """Map any exception to a Problem. The details of unexpected exceptions go to the log only."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Unavailable):
        signals.emit("dashboard_database_unavailable", detail=error.detail)
        message = "The database is not available. Try again in a moment."
        return Problem(503, "unavailable", message, headers={"retry-after": str(error.retry_after)})
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "malformed")
        messages = {404: "This page does not exist.", 405: "This URL does not support that method."}
        message = messages.get(error.status_code, "The request is malformed.")
        return Problem(error.status_code, code, message, headers=error.headers)
    frames = "".join(traceback.format_tb(error.__traceback__))
    signals.emit("dashboard_failed", error=type(error).__name__, traceback=frames)
    return Problem(500, "internal", "This is a bug in Oncehook. The log has the traceback; please report it.")
