"""The view that receives deliveries, with Django's clients: through WSGI and through ASGI."""

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.core.handlers.wsgi import WSGIHandler
from django.db import connections
from django.test import AsyncClient, Client, RequestFactory, override_settings

from oncehook.testing import sign
from tests.support.events import Rows, stripe_body

Post = Callable[..., Any]

RECEIPTS = "SELECT event_id, status FROM webhook_receipts ORDER BY id"
SECRET = "whsec_test"
LOGIN_REQUIRED = "django.contrib.auth.middleware.LoginRequiredMiddleware"


@pytest.fixture(params=["wsgi", "asgi"])
def post(request: pytest.FixtureRequest, django_inbox: Any) -> Iterator[Post]:
    """Sends a body to an address of the project, through WSGI and through ASGI in turn."""

    def post(path: str, body: bytes, headers: dict[str, str] | None = None, **options: Any) -> Any:
        signed = sign("stripe", body, SECRET) if headers is None else headers
        arguments = {"data": body, "content_type": "application/json", "headers": signed, **options}
        if request.param == "wsgi":
            return Client(enforce_csrf_checks=True).post(path, **arguments)

        async def send() -> Any:
            return await AsyncClient(enforce_csrf_checks=True).post(path, **arguments)

        return async_to_sync(send)()

    django_inbox.wsgi.start()
    yield post
    django_inbox.wsgi.stop()


def test_delivery_is_recorded_once(post: Post, rows: Rows) -> None:
    body = stripe_body("evt_1")
    first, second = post("/webhooks/stripe", body), post("/webhooks/stripe/", body)
    assert (first.status_code, json.loads(first.content)["status"]) == (202, "accepted")
    assert (second.status_code, json.loads(second.content)["status"]) == (200, "duplicate")
    assert rows(RECEIPTS) == [("evt_1", "received")]


def test_delivery_without_a_valid_signature_is_rejected(post: Post, rows: Rows) -> None:
    response = post("/webhooks/stripe", stripe_body("evt_1"), {"Stripe-Signature": "t=1,v1=00"})
    assert response.status_code in (400, 401)
    assert json.loads(response.content)["error"]["code"] == "bad_signature"
    assert rows(RECEIPTS) == []


def test_unknown_source_is_not_found(post: Post) -> None:
    response = post("/webhooks/unknown", b"{}")
    assert (response.status_code, json.loads(response.content)["error"]["code"]) == (404, "unknown_source")


def test_body_may_be_larger_than_uploads_of_django_and_not_than_the_source_allows(post: Post, rows: Rows) -> None:
    large = json.dumps({"id": "evt_1", "type": "invoice.paid", "data": {"object": {"text": "x" * 300_000}}}).encode()
    with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=1000):
        assert post("/webhooks/stripe", large).status_code == 202
        assert post("/webhooks/stripe", b"x" * 2_000_000).status_code == 413
    assert rows(RECEIPTS) == [("evt_1", "received")]


@override_settings(MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware"])
def test_project_without_other_middleware_accepts_deliveries(post: Post) -> None:
    assert post("/webhooks/stripe", stripe_body("evt_1")).status_code == 202


@pytest.mark.skipif(django.VERSION < (5, 1), reason="Django 5.1 has LoginRequiredMiddleware")
def test_login_is_not_required(post: Post) -> None:
    from django.conf import settings

    with override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, LOGIN_REQUIRED]):
        assert post("/webhooks/stripe", stripe_body("evt_1")).status_code == 202


def test_delivery_is_outside_of_atomic_requests(post: Post, rows: Rows) -> None:
    connections["default"].settings_dict["ATOMIC_REQUESTS"] = True
    assert post("/webhooks/stripe", stripe_body("evt_1")).status_code == 202
    assert rows(RECEIPTS) == [("evt_1", "received")]


def test_body_that_a_middleware_has_read_is_accepted(post: Post, rows: Rows) -> None:
    from django.conf import settings

    reads = "tests.integrations.django.test_views.ReadBody"
    with override_settings(MIDDLEWARE=[reads, *settings.MIDDLEWARE]):
        assert post("/webhooks/stripe", stripe_body("evt_1")).status_code == 202
        with override_settings(DATA_UPLOAD_MAX_MEMORY_SIZE=10):
            assert post("/webhooks/stripe", stripe_body("evt_2")).status_code == 400, "Django's limit for its reading"


def test_chunked_body_that_a_middleware_has_asked_for_is_accepted(django_inbox: Any, rows: Rows) -> None:
    """Django gives the middleware an empty body, because a chunked request has no length."""
    from django.conf import settings

    body = stripe_body("evt_1")
    signed = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in sign("stripe", body, SECRET).items()}
    environ = RequestFactory().post("/webhooks/stripe", content_type="application/json", **signed).environ
    del environ["CONTENT_LENGTH"]
    environ |= {"wsgi.input": BytesIO(body), "wsgi.input_terminated": True, "HTTP_TRANSFER_ENCODING": "chunked"}
    statuses: list[str] = []
    with override_settings(MIDDLEWARE=["tests.integrations.django.test_views.AskForBody", *settings.MIDDLEWARE]):
        response = WSGIHandler()(environ, lambda status, headers: statuses.append(status))
        assert b"accepted" in b"".join(response), statuses
        response.close()
    django_inbox.wsgi.stop()
    assert (statuses, rows(RECEIPTS)) == (["202 Accepted"], [("evt_1", "received")])


class AskForBody:
    """A middleware that reads the body before the view, and accepts an empty one."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        _ = request.body
        return self.get_response(request)


class ReadBody(AskForBody):
    """The same, for requests with a body."""

    def __call__(self, request: Any) -> Any:
        assert request.body
        return self.get_response(request)
