"""The view that receives deliveries. It only records them: handlers run in a worker, after the response."""

from io import BytesIO
from typing import Any

from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse

from oncehook.integrations.django.instance import project
from oncehook.receiver import wsgi
from oncehook.receiver.ack import rejected_response
from oncehook.receiver.handover import RequestBody
from oncehook.receiver.request import CLOSE


async def receive(request: HttpRequest, address: str) -> HttpResponse:
    """Answer a delivery to the address of a source: `<source>` or `<source>/<tenant>`, with or without a slash."""
    name, gateway = address.strip("/"), project.inbox.wsgi
    if hasattr(request, "environ"):  # WSGI: Django runs this coroutine in a separate thread, which may block
        response = gateway.answer(name, wsgi.make_scope(request.environ), read_body(request))
    else:
        query = request.META.get("QUERY_STRING", "").encode(
            "latin-1", "replace"
        )  # a text in the scope of a test client
        response = await gateway.answer_async(name, {**request.scope, "query_string": query}, read_body(request))
    status, body, headers = response or rejected_response("malformed", CLOSE)  # a server needs some response
    return HttpResponse(body, status=status, headers=dict(wsgi.response_headers(status, body, headers)))


def read_body(request: HttpRequest) -> RequestBody:
    """Return the body as it was sent. Django's limit for uploads does not apply: each source has its own."""
    if hasattr(request, "_body") and not _is_unread(request):  # a middleware has read it
        return RequestBody(BytesIO(request._body).read, len(request._body))
    if hasattr(request, "environ"):
        return wsgi.make_body(request.environ)
    declared = request.META.get("CONTENT_LENGTH") or ""
    return RequestBody(request.read, int(declared) if declared.isascii() and declared.isdigit() else None)


def _is_unread(request: HttpRequest) -> bool:
    """Whether a WSGI request still has its body: of a chunked one, which has no length, Django reads nothing."""
    environ = getattr(request, "environ", {})
    is_chunked = not environ.get("CONTENT_LENGTH") and bool(environ.get("wsgi.input_terminated"))
    return is_chunked and not request._body


def exempt(view: Any) -> Any:
    """Exempt a view from checks for browsers, and from the transaction around a request.

    That is CSRF tokens, the login of LoginRequiredMiddleware, and ATOMIC_REQUESTS of every database.
    """
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    view.csrf_exempt = True  # Django 4.2's decorator would hide that the view is a coroutine
    view.login_required = False  # as login_not_required of Django 5.1 sets it
    return view
