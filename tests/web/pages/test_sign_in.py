"""The sign-in page: sessions, throttled sign-ins, redirects that stay on this site, and the audit log."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.web.auth import MAX_FAILURES, THROTTLE_INTERVAL
from tests.support.dashboard import PASSWORD, Site, both_databases, dashboard_of
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


@both_databases
async def test_session_cookie_is_hidden_from_scripts_and_the_sign_in_is_audited(site: Site, rows: Rows) -> None:
    async with site.browser() as browser:
        response = await browser.sign_in("vera")
        cookie = response.headers["set-cookie"]
        assert response.status_code == 303 and response.headers["location"] == "/"
        assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Secure" not in cookie
        assert (await browser.get("/")).status_code == 200
        assert (await browser.get("/sign-in")).headers["location"] == "/", "a signed-in user needs no sign-in page"
    assert rows("SELECT actor, action FROM webhook_audit") == [("user:vera", "sign_in")]


async def test_response_does_not_say_whether_the_name_or_the_password_was_wrong(site: Site, rows: Rows) -> None:
    async with site.browser() as browser:
        wrong = [await browser.sign_in("vera", "wrong"), await browser.sign_in("mallory", PASSWORD)]
        wrong.append(await browser.submit("/sign-in", {"token": "wrong"}))
        assert [(response.status_code, "set-cookie" in response.headers) for response in wrong] == [(401, False)] * 3
        assert len({response.text for response in wrong}) == 1 and "Wrong name, password or token." in wrong[0].text
    assert rows("SELECT count(*) FROM webhook_audit") == [(0,)]


async def test_token_signs_in_with_its_scopes(site: Site) -> None:
    async with site.browser() as browser:
        assert (await browser.submit("/sign-in", {"token": " token-of-reader "})).status_code == 303
        assert "reader" in (await browser.get("/")).text
        assert (await browser.get("/replay?status=failed")).status_code == 403


async def test_failed_sign_ins_slow_down_one_name_and_more_of_them_get_a_429(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.web.auth.THROTTLE_INTERVAL", 0.2)
    async with site.browser() as browser:
        for _ in range(MAX_FAILURES):
            assert (await browser.sign_in("vera", "wrong")).status_code == 401
        started = time.monotonic()
        assert (await browser.sign_in("otto")).status_code == 303
        responses = await asyncio.gather(*(browser.sign_in("vera", "wrong") for _ in range(10)))
        assert {response.status_code for response in responses} == {401, 429}
        assert all(response.headers["retry-after"] for response in responses if response.status_code == 429)
        assert time.monotonic() - started >= 0.5, "three sign-ins wait for a slot each"
        assert (await browser.sign_in("vera")).status_code == 303, "the right password must still work"


async def proxied_inbox(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox(trusted_proxies=["127.0.0.1"])
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


async def test_attacker_behind_the_same_trusted_proxy_slows_down_no_one_else(
    make_inbox: Callable[..., Inbox], rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    inbox = await proxied_inbox(make_inbox)
    attacker, operator = {"X-Forwarded-For": "203.0.113.9"}, {"X-Forwarded-For": "10.1.1.1, 198.51.100.7"}
    async with dashboard_of(inbox) as site, site.browser() as browser:
        for _ in range(MAX_FAILURES):
            wrong = await browser.submit("/sign-in", {"name": "otto", "password": "wrong"}, headers=attacker)
            assert wrong.status_code == 401
        started = time.monotonic()
        right = await browser.submit("/sign-in", {"name": "otto", "password": PASSWORD}, headers=operator)
        assert right.status_code == 303 and time.monotonic() - started < THROTTLE_INTERVAL / 2
    ((detail,),) = rows("SELECT detail FROM webhook_audit")
    assert json.loads(detail)["address"] == "198.51.100.7"
    assert {line["address"] for line in lines() if line["event"] == "sign_in_failed"} == {"203.0.113.9"}


async def test_client_that_is_no_trusted_proxy_cannot_set_its_address(site: Site, rows: Rows) -> None:
    async with site.browser() as browser:
        fields = {"name": "vera", "password": PASSWORD}
        await browser.submit("/sign-in", fields, headers={"X-Forwarded-For": "203.0.113.9"})
    ((detail,),) = rows("SELECT detail FROM webhook_audit")
    assert json.loads(detail)["address"] == "127.0.0.1"


async def test_sign_in_continues_to_the_requested_page_and_never_to_another_site(site: Site) -> None:
    async with site.browser() as browser:
        first = await browser.get("/events?status=failed")
        assert first.headers["location"] == "/sign-in?next=/events%3Fstatus%3Dfailed"
        assert "/sign-in?next=" in first.text, "a client such as curl must see where to sign in"
        for target, location in [
            ("/events?status=failed", "/events?status=failed"),
            ("//evil.example/", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example/", "/"),
            ("javascript:alert(1)", "/"),
            ("/\r\nset-cookie: x=y", "/"),
        ]:
            response = await browser.submit("/sign-in", {"name": "vera", "password": PASSWORD, "next": target})
            assert response.headers["location"] == location
            browser.cookies.clear()


async def test_signing_out_revokes_the_session_even_if_the_cookie_was_copied(site: Site) -> None:
    async with site.signed_in("vera") as browser:
        copied = browser.cookies["oncehook_session"]
        assert (await browser.submit("/sign-out")).status_code == 303
        browser.cookies.set("oncehook_session", copied)
        assert (await browser.get("/")).status_code == 303


async def test_page_without_configured_users_explains_the_run_token(inbox: Inbox, site: Site) -> None:
    async with site.browser() as browser:
        assert "No users are configured" not in (await browser.get("/sign-in")).text
    async with dashboard_of(inbox, {}) as open_site, open_site.browser() as browser:
        page = (await browser.get("/sign-in")).text
        assert "No users are configured" in page and "oncehook access NAME" in page and "Password" not in page


async def test_sign_in_by_the_printed_url_is_audited_and_a_wrong_token_is_logged(
    inbox: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    async with dashboard_of(inbox, {}) as site, site.browser() as browser:
        await browser.get("/", params={"token": "wrong"})
        assert [line["address"] for line in lines() if line["event"] == "sign_in_failed"] == ["127.0.0.1"]
        assert rows("SELECT count(*) FROM webhook_audit") == [(0,)]
        for origin in ("none", "same-origin"):
            token = site.dashboard.access.run_token or ""
            right = await browser.get("/", params={"token": token}, headers={"Sec-Fetch-Site": origin})
            assert right.status_code == 303 and right.headers["location"] == "/"
    assert rows("SELECT actor, action FROM webhook_audit") == [("run", "sign_in")] * 2
