"""What every page uses: ids and fields from a request, links below a mount path, and the receiver's URL."""

import pytest
from starlette.requests import Request

from oncehook.web.page import (
    MAX_FIELD_LENGTH,
    RECEIVER,
    ROOT,
    Context,
    Page,
    Problem,
    check_texts,
    form,
    parse_id,
    with_root,
)
from tests.support.dashboard import make_request

pytestmark = pytest.mark.anyio


def test_only_digits_of_a_possible_length_are_an_id() -> None:
    assert parse_id("1042") == 1042 and parse_id("0") == 0
    for text in ("", "abc", "-1", "1.5", "٣", "1" * 19, " 1"):
        assert parse_id(text) is None, f"{text!r} must not be an id"


@pytest.mark.parametrize("value", ["x" * (MAX_FIELD_LENGTH + 1), "a\0b", "\ud800"])
def test_field_that_a_database_would_reject_is_a_problem(value: str) -> None:
    with pytest.raises(Problem, match="search is too long or is not valid text") as error:
        check_texts({"type": "fine", "search": value})
    assert (error.value.status, error.value.code) == (422, "bad_filter")


def test_field_may_have_the_maximum_length() -> None:
    check_texts({"search": "x" * MAX_FIELD_LENGTH, "note": ""})
    with pytest.raises(Problem):
        check_texts({"note": "x" * 501}, 500)


def test_mount_path_is_put_before_every_local_link_and_no_other() -> None:
    html = '<a href="/events">x</a><form action="/sign-out"><img src="/i"><a href="https://x.example/">'
    assert with_root(html, "/admin") == (
        '<a href="/admin/events">x</a><form action="/admin/sign-out"><img src="/admin/i"><a href="https://x.example/">'
    )
    assert with_root(html, "") == html
    assert 'href="/a&quot;b/events"' in with_root(html, '/a"b')


async def test_receiver_url_has_the_host_of_the_request_or_the_configured_origin(context: Context) -> None:
    request = make_request()
    assert context.receiver_url(request) == "http://inbox.test/webhooks"
    request.scope[RECEIVER] = "/shop/hooks"
    assert context.receiver_url(request) == "http://inbox.test/shop/hooks"
    context.access.settings = type(context.access.settings)(public_url="https://hooks.example.com/admin")
    assert context.receiver_url(request) == "https://hooks.example.com/shop/hooks"


async def test_sign_out_is_shown_only_to_an_authenticated_user(context: Context) -> None:
    request = make_request()
    assert b"Sign out" in context.render(request, "problem.html", problem=Problem(404, "not_found", "Gone.")).body
    request.scope["principal"] = None
    request.scope[ROOT] = "/admin"
    response = context.render(request, "problem.html", status=404, problem=Problem(404, "not_found", "Gone."))
    assert response.status_code == 404 and b"Sign out" not in response.body and b'href="/admin/static/' in response.body


def test_page_is_in_the_navigation_by_default() -> None:
    assert Page("Events", "/events").is_shown(None)  # type: ignore[arg-type]  # the default does not use the runtime


def test_form_fields_are_those_that_the_guard_has_read() -> None:
    request = Request({"type": "http"})
    request.state.form = {"name": "vera"}
    assert form(request) == {"name": "vera"}
