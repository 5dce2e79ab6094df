"""The guard around every page: form tokens, origins, bodies, security headers, and exceptions as problems."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from oncehook import Inbox
from oncehook.web.guard import as_problem, guarded, is_api, is_public
from oncehook.web.page import Action, Context, Problem
from tests.support.dashboard import CONFIGURED, PASSWORD, Site, dashboard_of, make_request

pytestmark = pytest.mark.anyio
FORM = {"content-type": "application/x-www-form-urlencoded"}


def test_only_the_sign_in_page_and_static_files_are_public() -> None:
    assert all(is_public(path) for path in ("/sign-in", "/favicon.ico", "/static/style.css"))
    assert not any(is_public(path) for path in ("/", "/sign-in/x", "/staticx", "/api/events", "/live"))
    assert is_api("/api/events") and not is_api("/apis")


# -- requests from another site -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1"},
        {"referer": "http://127.0.0.1/"},
    ],
    ids=str,
)
async def test_form_from_another_site_is_rejected_despite_the_cookie(site: Site, headers: dict[str, str]) -> None:
    async with site.signed_in() as browser:
        fields = {"csrf": await browser.form_token()}
        assert (await browser.post("/sign-out", data=fields, headers=headers)).status_code == 403
        assert (await browser.get("/")).status_code == 200
    async with site.browser() as stranger:
        response = await stranger.post("/sign-in", data={"name": "vera", "password": PASSWORD}, headers=headers)
        assert response.status_code == 403


async def test_form_without_the_token_of_its_session_is_rejected(site: Site) -> None:
    async with site.signed_in("vera") as other, site.signed_in() as browser:
        for token in ("", "wrong", "é", await other.form_token()):
            response = await browser.submit("/sign-out", {"csrf": token})
            assert (response.status_code, "an expired session" in response.text) == (403, True)
        api = await browser.post("/api/events/1/replay", headers={"origin": site.address})
        assert api.status_code == 403 and api.json()["error"]["code"] == "form_expired"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "a b", "[::1].evil"])
async def test_page_of_a_rebound_domain_cannot_sign_in(site: Site, host: str) -> None:
    """DNS rebinding: the attacker's domain points here, so the host and the origin match each other."""
    async with site.browser() as browser:
        headers = {"host": host, "origin": f"http://{host}"}
        response = await browser.post("/sign-in", data={"name": "vera", "password": PASSWORD}, headers=headers)
        assert response.status_code == 403 and "set-cookie" not in response.headers


async def test_rejection_of_an_unknown_host_names_the_setting(site: Site) -> None:
    async with site.browser() as browser:
        headers = {"host": "hooks.example.com", "origin": "http://hooks.example.com"}
        response = await browser.post("/sign-in", data={"name": "vera"}, headers=headers)
        assert response.status_code == 403
        assert "Set dashboard.public_url to http://hooks.example.com" in response.text


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "inbox", "10.0.0.7"])
async def test_sign_in_works_by_address_and_by_local_name(site: Site, host: str) -> None:
    async with site.browser() as browser:
        headers = {"host": host, "origin": f"http://{host}"}
        response = await browser.post("/sign-in", data={"name": "vera", "password": PASSWORD}, headers=headers)
        assert response.status_code == 303


async def test_public_url_is_an_allowed_origin_behind_a_proxy(inbox: Inbox) -> None:
    public = {**CONFIGURED, "public_url": "https://hooks.example.com"}
    async with dashboard_of(inbox, public) as site, site.browser() as browser:
        headers = {"origin": "https://hooks.example.com"}
        response = await browser.submit("/sign-in", {"name": "vera", "password": PASSWORD}, headers=headers)
        assert response.status_code == 303 and "Secure" in response.headers["set-cookie"]


async def test_bearer_token_needs_no_origin_and_a_wrong_one_overrides_the_cookie(site: Site) -> None:
    async with site.signed_in() as browser:
        wrong = await browser.get("/api/sources", headers={"authorization": "Bearer wrong"})
        assert wrong.status_code == 401
    async with site.program("admin") as program:
        response = await program.post("/api/replays", json={"status": "failed", "dry_run": True})
        assert response.status_code == 200


# -- the token in the URL that `serve` prints -----------------------------------------------------------------------


async def test_run_token_in_the_url_becomes_a_session_and_leaves_the_address_bar(inbox: Inbox) -> None:
    async with dashboard_of(inbox, {}) as site, site.browser() as browser:
        token = site.dashboard.access.run_token or ""
        assert (await browser.get("/")).headers["location"] == "/sign-in"
        wrong = await browser.get("/", params={"token": "wrong"})
        assert (wrong.status_code, wrong.headers["location"]) == (303, "/sign-in?wrong=token")
        for _ in range(2):  # the second time with a session
            right = await browser.get("/", params={"token": token})
            assert (right.status_code, right.headers["location"]) == (303, "/")
        assert (await browser.get("/")).status_code == 200
        foreign = await browser.get("/", params={"token": token}, headers={"Sec-Fetch-Site": "cross-site"})
        assert foreign.status_code == 403 and "set-cookie" not in foreign.headers
        api = await browser.get("/api/sources", headers={"authorization": f"Bearer {token}"})
        assert api.status_code == 200


async def test_configured_token_in_the_url_does_not_sign_in(site: Site) -> None:
    async with site.browser() as browser:
        response = await browser.get("/", params={"token": "token-of-admin"})
        assert (response.status_code, response.headers["location"]) == (303, "/sign-in?wrong=token")
        assert "set-cookie" not in response.headers


# -- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("media_type", ["text/plain", "multipart/form-data; boundary=x", "application/json", ""])
async def test_form_must_have_the_media_type_of_a_form(site: Site, media_type: str) -> None:
    async with site.signed_in() as browser:
        headers = {"content-type": media_type, "origin": site.address}
        token = await browser.form_token()
        response = await browser.post("/sign-out", content=f"csrf={token}".encode(), headers=headers)
        assert response.status_code == 415


async def test_form_that_is_too_large_or_malformed_is_rejected(site: Site) -> None:
    async with site.browser() as browser:
        headers = {**FORM, "origin": site.address}
        assert (await browser.post("/sign-in", content=b"a=" + b"x" * 70_000, headers=headers)).status_code == 413
        assert (await browser.post("/sign-in", content=b"\xff\xfe", headers=headers)).status_code == 400
        assert (await browser.post("/sign-in", content=b"&".join([b"a=1"] * 500), headers=headers)).status_code == 400


# -- sessions over HTTPS --------------------------------------------------------------------------------------------


async def test_cookie_over_https_is_secure_and_bound_to_this_host(site: Site) -> None:
    https = {"x-forwarded-proto": "https"}
    async with site.browser() as browser:
        response = await browser.submit("/sign-in", {"name": "vera", "password": PASSWORD}, headers=https)
        cookie = response.headers["set-cookie"]
        assert cookie.startswith("__Host-oncehook_session=") and "Secure" in cookie and "Path=/" in cookie
        assert "Domain" not in cookie
        name, _, value = cookie.partition(";")[0].partition("=")
        browser.cookies.clear()
        for sent, status in ((name, 200), ("oncehook_session", 303)):  # another host of the domain could set the second
            response = await browser.get("/", headers={**https, "cookie": f"{sent}={value}"})
            assert response.status_code == status
        page = await browser.get("/", headers={**https, "cookie": f"{name}={value}"})
        form_token = re.search(r'name="csrf" value="([^"]+)"', page.text)
        assert form_token is not None
        headers = {**https, "cookie": f"{name}={value}", "origin": str(browser.base_url).rstrip("/")}
        out = await browser.post("/sign-out", data={"csrf": form_token[1]}, headers=headers)
        deleted = out.headers["set-cookie"]
        assert deleted.startswith('__Host-oncehook_session=""') and "Secure" in deleted


# -- live updates ---------------------------------------------------------------------------------------------------


async def test_page_names_the_state_before_it_read_the_database(context: Context) -> None:
    """A change that is noticed while the page is made may not be in it, so the page must be notified of it."""

    async def show(context: Context, request: Request) -> Response:
        context.live._change_token = "changed meanwhile"
        return context.render(request, "problem.html", problem=Problem(404, "not_found", "Gone."))

    context.live._change_token = "known before"
    response = await guarded(context, Action("GET", "/shown", show))(make_request())
    assert b'data-seen="known before"' in response.body


# -- exceptions -----------------------------------------------------------------------------------------------------


def test_unexpected_exception_shows_no_detail_and_logs_the_traceback(lines: Callable[[], list[dict[str, Any]]]) -> None:
    text = "CANARY"
    try:
        raise KeyError(text)
    except KeyError as error:
        problem = as_problem(error)
    assert (problem.status, problem.code) == (500, "internal") and "CANARY" not in problem.message
    (line,) = lines()
    frames = line["traceback"]
    assert line["event"] == "dashboard_failed" and "test_guard.py" in frames and "CANARY" not in frames


def test_errors_of_the_router_have_a_code_and_a_sentence() -> None:
    assert as_problem(HTTPException(404)).message == "This page does not exist."
    method = as_problem(HTTPException(405, headers={"allow": "POST"}))
    assert (method.code, method.headers) == ("method_not_allowed", {"allow": "POST"})
    assert as_problem(HTTPException(400)).code == "malformed"
    problem = Problem(409, "not_erased", "The payload was already erased.")
    assert as_problem(problem) is problem


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_unavailable_database_is_reported_and_logged(
    shop: Inbox, site: Site, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    async with site.signed_in() as browser:
        await shop._runtime.store.close()
        page = await browser.get("/events/1")
        assert page.status_code == 503 and "The database is not available." in page.text
        assert page.headers["retry-after"]
        assert "dashboard_database_unavailable" in [line["event"] for line in lines()]
        assert (await browser.get("/api/events/1")).json()["error"]["code"] == "unavailable"
        await shop._runtime.store.open()
