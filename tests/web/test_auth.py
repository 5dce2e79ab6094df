"""Who may come in: passwords, tokens, sessions, and requests that another site makes a browser send."""

import asyncio
import json
import re
import subprocess
import time
import tomllib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from oncehook import ConfigurationError, Inbox
from oncehook.concurrency.clock import Clock
from oncehook.web.auth import MAX_FAILURES, THROTTLE_INTERVAL, Access, hash_password, hash_token, is_password
from oncehook.web.settings import read_dashboard
from tests.support.dashboard import CONFIGURED, PASSWORD, Site, dashboard_of
from tests.support.events import Rows
from tests.support.serve import ONCEHOOK

pytestmark = pytest.mark.anyio


class Moved(Clock):
    """A clock that a test moves."""

    ahead = 0.0

    def now(self) -> float:
        return time.time() + self.ahead

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def clock() -> Moved:
    return Moved()


@pytest.fixture
def access(clock: Moved) -> Access:
    return Access(read_dashboard(CONFIGURED), b"key", clock)


@pytest.fixture
async def site(inbox: Inbox) -> AsyncIterator[Site]:
    async with dashboard_of(inbox) as site:
        yield site


only_sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # nothing there asks the database


# -- hashes and sessions --------------------------------------------------------------------------------------------


def test_a_password_is_hashed_with_a_salt_of_its_own() -> None:
    first, second = hash_password("a password"), hash_password("a password")
    assert first != second and "a password" not in first
    assert is_password("a password", first) and is_password("a password", second)
    assert not is_password("a Password", first)


async def test_an_unknown_name_takes_as_long_as_a_wrong_password() -> None:
    slow = read_dashboard({"users": {"vera": {"password": hash_password("right")}}})
    access = Access(slow, b"key")

    async def seconds(name: str) -> float:
        started = time.perf_counter()
        assert await access.check_password(name, "wrong") is None
        return time.perf_counter() - started

    known = min([await seconds("vera") for _ in range(3)])
    unknown = min([await seconds("nobody") for _ in range(3)])
    assert unknown > known / 3


def test_a_session_names_who_signed_in_and_ends(access: Access, clock: Moved) -> None:
    cookie = access.start_session("user:vera")
    found = access.check_session(cookie)
    assert found is not None and found.name == "user:vera" and found.scopes == {"read"} and found.csrf
    clock.ahead = 12 * 3600 - 60
    assert access.check_session(cookie) is not None
    clock.ahead = 12 * 3600 + 60
    assert access.check_session(cookie) is None


def test_no_changed_cookie_is_a_session(access: Access) -> None:
    cookie = access.start_session("user:vera")
    body, _, signature = cookie.partition(".")
    other = access.start_session("user:otto").partition(".")[0]
    tried = [f"{other}.{signature}", body, f"{body}.", f".{signature}", "", ".", "é.é", cookie[:-1], cookie + "A"]
    tried += [f"{body}.{signature[:i]}{'A' if signature[i] != 'A' else 'B'}{signature[i + 1 :]}" for i in (0, 10, 41)]
    assert [one for one in tried if access.check_session(one) is not None] == []


def test_a_session_ends_when_its_password_is_changed_or_its_user_taken_out(access: Access) -> None:
    cookie = access.start_session("user:vera")
    changed = {**CONFIGURED, "users": {"vera": {"password": hash_password("another", cost=4)}}}
    assert Access(read_dashboard(changed), b"key").check_session(cookie) is None
    assert Access(read_dashboard({**CONFIGURED, "users": {}}), b"key").check_session(cookie) is None
    assert Access(read_dashboard(CONFIGURED), b"another run").check_session(cookie) is not None


def test_without_a_session_key_sessions_are_of_this_run() -> None:
    settings = read_dashboard({name: value for name, value in CONFIGURED.items() if name != "session_key"})
    cookie = Access(settings, b"one run").start_session("user:vera")
    assert Access(settings, b"one run").check_session(cookie) is not None
    assert Access(settings, b"another run").check_session(cookie) is None


def test_a_token_has_the_scopes_that_it_was_given_and_no_more(access: Access) -> None:
    found = access.check_token("token-of-replayer")
    assert found is not None and found.scopes == {"read", "replay"}
    assert access.check_token("token-of-replaye") is None and access.check_token("") is None
    assert access.check_token(hash_token("token-of-replayer")) is None


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"users": {"x": {"password": "plain CANARY text"}}}, "dashboard.users.x.password is not a hash"),
        ({"tokens": {"x": {"token": "CANARY"}}}, "dashboard.tokens.x.token is not a hash"),
        ({"users": {"x": {"role": "admin"}}}, "expected one of viewer, operator"),
        ({"tokens": {"x": {"scopes": ["write"]}}}, "expected a list of read, replay, admin"),
        ({"user": {}}, "did you mean dashboard.users?"),
        ({"public_url": "https://x.example/path?token=1"}, "expected a URL such as"),
        ({"session_key": 5}, "dashboard.session_key is not usable"),
    ],
)
def test_a_wrong_table_is_told_and_shows_no_secret(table: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told.replace("?", r"\?")) as error:
        read_dashboard(table)
    assert "CANARY" not in str(error.value)


# -- signing in -----------------------------------------------------------------------------------------------------


async def test_who_signs_in_gets_a_cookie_that_scripts_cannot_read(site: Site, rows: Rows) -> None:
    async with site.browser() as browser:
        answer = await browser.sign_in("vera")
        cookie = answer.headers["set-cookie"]
        assert answer.status_code == 303 and answer.headers["location"] == "/"
        assert "HttpOnly" in cookie and "SameSite=lax" in cookie and "Secure" not in cookie
        assert (await browser.get("/")).status_code == 200
    assert rows("SELECT actor, action FROM webhook_audit") == [("user:vera", "sign_in")]


@only_sqlite
async def test_behind_https_the_cookie_is_for_https_alone(site: Site) -> None:
    async with site.browser() as browser:
        fields = {"name": "vera", "password": PASSWORD}
        answer = await browser.submit("/sign-in", fields, headers={"x-forwarded-proto": "https"})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-oncehook_session=") and "Secure" in cookie and "Path=/" in cookie
        assert "Domain" not in cookie
        name, _, value = cookie.partition(";")[0].partition("=")
        browser.cookies.clear()
        https = {"x-forwarded-proto": "https"}
        for sent, status in ((name, 200), ("oncehook_session", 303)):  # another host of the domain could set the latter
            answer = await browser.get("/", headers={**https, "cookie": f"{sent}={value}"})
            assert answer.status_code == status
        form_token = re.search(
            r'name="csrf" value="([^"]+)"',
            (await browser.get("/", headers={**https, "cookie": f"{name}={value}"})).text,
        )
        assert form_token is not None
        headers = {**https, "cookie": f"{name}={value}", "origin": str(browser.base_url).rstrip("/")}
        out = await browser.post("/sign-out", data={"csrf": form_token[1]}, headers=headers)
        assert (
            out.headers["set-cookie"].startswith('__Host-oncehook_session=""') and "Secure" in out.headers["set-cookie"]
        )


async def test_a_wrong_name_and_a_wrong_password_are_told_alike(site: Site, rows: Rows) -> None:
    async with site.browser() as browser:
        wrong = [await browser.sign_in("vera", "wrong"), await browser.sign_in("nobody", PASSWORD)]
        wrong.append(await browser.submit("/sign-in", {"token": "wrong"}))
        assert [(answer.status_code, "set-cookie" in answer.headers) for answer in wrong] == [(401, False)] * 3
        assert len({answer.text for answer in wrong}) == 1
    assert rows("SELECT count(*) FROM webhook_audit") == [(0,)]


@only_sqlite
async def test_after_some_failures_a_name_is_slowed_down_and_others_are_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.web.auth.THROTTLE_INTERVAL", 1.0)
    async with site.browser() as browser:
        for _ in range(MAX_FAILURES):
            assert (await browser.sign_in("vera", "wrong")).status_code == 401
        started = time.monotonic()
        assert (await browser.sign_in("otto")).status_code == 303
        assert (await browser.sign_in("vera")).status_code == 303  # the right password is read all the same
        assert time.monotonic() - started > 0.5
        assert (await browser.sign_in("vera")).status_code == 303


@only_sqlite
async def test_wrong_passwords_are_read_at_the_slow_pace_and_more_of_them_are_429(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.web.auth.THROTTLE_INTERVAL", 0.5)
    async with site.browser() as browser:
        for _ in range(MAX_FAILURES):
            assert (await browser.sign_in("vera", "wrong")).status_code == 401
        started = time.monotonic()
        answers = await asyncio.gather(*(browser.sign_in("vera", "wrong") for _ in range(10)))
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [401] * 3 + [429] * 7 and time.monotonic() - started >= 1.4
        assert all(int(one.headers["retry-after"]) >= 0 for one in answers if one.status_code == 429)


async def proxied_inbox(make_inbox: Callable[..., Inbox]) -> Inbox:
    inbox = make_inbox(trusted_proxies=["127.0.0.1"])
    inbox.source("stripe", secrets=["whsec_test"])
    return inbox


@only_sqlite
async def test_behind_a_listed_proxy_a_stranger_slows_down_nobody_else(
    make_inbox: Callable[..., Inbox], rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    inbox = await proxied_inbox(make_inbox)
    stranger, operator = {"X-Forwarded-For": "203.0.113.9"}, {"X-Forwarded-For": "10.1.1.1, 198.51.100.7"}
    async with dashboard_of(inbox) as site, site.browser() as browser:
        for _ in range(MAX_FAILURES):
            wrong = await browser.submit("/sign-in", {"name": "otto", "password": "wrong"}, headers=stranger)
            assert wrong.status_code == 401
        started = time.monotonic()
        right = await browser.submit("/sign-in", {"name": "otto", "password": PASSWORD}, headers=operator)
        assert right.status_code == 303 and time.monotonic() - started < THROTTLE_INTERVAL / 2
    ((detail,),) = rows("SELECT detail FROM webhook_audit")
    assert json.loads(detail)["address"] == "198.51.100.7"
    assert {line["address"] for line in lines() if line["event"] == "sign_in_failed"} == {"203.0.113.9"}


@only_sqlite
async def test_guesses_of_one_address_do_not_fill_the_queue_of_all(make_inbox: Callable[..., Inbox]) -> None:
    inbox = await proxied_inbox(make_inbox)
    slow = {"users": {"vera": {"password": hash_password(PASSWORD)}}}
    stranger, owner = {"X-Forwarded-For": "203.0.113.9"}, {"X-Forwarded-For": "198.51.100.7"}
    async with dashboard_of(inbox, slow) as site, site.browser() as browser:
        guesses = [
            browser.submit("/sign-in", {"name": f"name{n}", "password": "wrong"}, headers=stranger) for n in range(30)
        ]
        sign_in = browser.submit("/sign-in", {"name": "vera", "password": PASSWORD}, headers=owner)
        *wrong, right = await asyncio.gather(*guesses, sign_in)
    assert {answer.status_code for answer in wrong} == {401, 429} and right.status_code == 303


@only_sqlite
async def test_nobody_but_a_listed_proxy_says_who_the_client_is(site: Site, rows: Rows) -> None:
    async with site.browser() as browser:
        fields = {"name": "vera", "password": PASSWORD}
        await browser.submit("/sign-in", fields, headers={"X-Forwarded-For": "203.0.113.9"})
    ((detail,),) = rows("SELECT detail FROM webhook_audit")
    assert json.loads(detail)["address"] == "127.0.0.1"


@only_sqlite
async def test_guesses_wait_for_each_other_and_too_many_are_turned_away(inbox: Inbox) -> None:
    slow = {"users": {"vera": {"password": hash_password(PASSWORD)}}}
    async with dashboard_of(inbox, slow) as site, site.browser() as browser:
        answers = await asyncio.gather(*(browser.sign_in(f"name{n}", "wrong") for n in range(12)))
        assert {answer.status_code for answer in answers} == {401, 429}


@only_sqlite
async def test_the_sign_in_leads_on_to_where_one_wanted_to_go_and_nowhere_else(site: Site) -> None:
    async with site.browser() as browser:
        first = await browser.get("/events?status=failed")
        assert first.headers["location"] == "/sign-in?next=/events%3Fstatus%3Dfailed"
        assert "/sign-in?next=" in first.text  # for whoever does not follow
        for wanted, to in [
            ("/events?status=failed", "/events?status=failed"),
            ("//evil.example/", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example/", "/"),
            ("javascript:alert(1)", "/"),
            ("/\r\nset-cookie: x=y", "/"),
        ]:
            answer = await browser.submit("/sign-in", {"name": "vera", "password": PASSWORD, "next": wanted})
            assert answer.headers["location"] == to
            browser.cookies.clear()


@only_sqlite
async def test_signing_out_ends_the_session_though_its_cookie_was_kept(site: Site) -> None:
    async with site.signed_in("vera") as browser:
        kept = browser.cookies["oncehook_session"]
        assert (await browser.submit("/sign-out")).status_code == 303
        browser.cookies.set("oncehook_session", kept)
        assert (await browser.get("/")).status_code == 303


# -- a run without configuration ------------------------------------------------------------------------------------


@only_sqlite
async def test_the_printed_token_becomes_a_session_and_leaves_the_address(inbox: Inbox) -> None:
    async with dashboard_of(inbox, {}) as site, site.browser() as browser:
        token = site.dashboard.access.run_token
        assert (await browser.get("/")).headers["location"] == "/sign-in"
        assert "No users are configured" in (await browser.get("/sign-in")).text
        wrong = await browser.get("/", params={"token": "wrong"})
        assert (wrong.status_code, wrong.headers["location"]) == (303, "/sign-in?wrong=token")
        right = await browser.get("/", params={"token": token or ""})
        assert (right.status_code, right.headers["location"]) == (303, "/")
        assert (await browser.get("/")).status_code == 200
        again = await browser.get("/", params={"token": token or ""})
        assert again.status_code == 303 and again.headers["location"] == "/"  # also for who is signed in
        api = await browser.get("/api/sources", headers={"authorization": f"Bearer {token}"})
        assert api.status_code == 200


async def test_signing_in_by_the_printed_address_is_in_the_audit_and_a_wrong_token_in_the_log(
    inbox: Inbox, rows: Rows, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    async with dashboard_of(inbox, {}) as site, site.browser() as browser:
        token = site.dashboard.access.run_token or ""
        await browser.get("/", params={"token": "wrong"})
        assert [line["address"] for line in lines() if line["event"] == "sign_in_failed"] == ["127.0.0.1"]
        assert rows("SELECT count(*) FROM webhook_audit") == [(0,)]
        foreign = await browser.get("/", params={"token": token}, headers={"Sec-Fetch-Site": "cross-site"})
        assert foreign.status_code == 403 and "set-cookie" not in foreign.headers
        for site_ in ("none", "same-origin"):
            right = await browser.get("/", params={"token": token}, headers={"Sec-Fetch-Site": site_})
            assert right.status_code == 303 and right.headers["location"] == "/"
        assert "Nothing yet" not in (await browser.get("/audit")).text
    assert rows("SELECT actor, action FROM webhook_audit") == [("run", "sign_in")] * 2


@only_sqlite
async def test_where_somebody_is_configured_no_token_is_printed(site: Site) -> None:
    assert site.dashboard.access.run_token is None


@only_sqlite
async def test_configured_token_in_the_address_signs_nobody_in(site: Site, rows: Rows) -> None:
    async with site.browser() as browser:
        answer = await browser.get("/", params={"token": "token-of-admin"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?wrong=token")
        assert "set-cookie" not in answer.headers
    assert rows("SELECT count(*) FROM webhook_audit") == [(0,)]


# -- requests that another site makes -------------------------------------------------------------------------------


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
@only_sqlite
async def test_a_form_from_elsewhere_is_refused_though_it_has_the_cookie(site: Site, headers: dict[str, str]) -> None:
    async with site.signed_in() as browser:
        fields = {"csrf": await browser.form_token()}
        assert (await browser.post("/sign-out", data=fields, headers=headers)).status_code == 403
        assert (await browser.get("/")).status_code == 200
    async with site.browser() as stranger:
        answer = await stranger.post("/sign-in", data={"name": "vera", "password": PASSWORD}, headers=headers)
        assert answer.status_code == 403


@only_sqlite
async def test_a_form_without_the_sessions_own_token_is_refused(site: Site) -> None:
    async with site.signed_in("vera") as other, site.signed_in() as browser:
        for token in ("", "wrong", "é", await other.form_token()):
            answer = await browser.submit("/sign-out", {"csrf": token})
            assert (answer.status_code, "an expired session" in answer.text) == (403, True)
        api = await browser.post("/api/events/1/replay", headers={"origin": site.address})
        assert api.status_code == 403 and api.json()["error"]["code"] == "form_expired"


@pytest.mark.parametrize("media_type", ["text/plain", "multipart/form-data; boundary=x", "application/json", ""])
@only_sqlite
async def test_only_a_form_is_taken_for_a_form(site: Site, media_type: str) -> None:
    async with site.signed_in() as browser:
        headers = {"content-type": media_type, "origin": site.address}
        token = await browser.form_token()
        answer = await browser.post("/sign-out", content=f"csrf={token}".encode(), headers=headers)
        assert answer.status_code == 415


@only_sqlite
async def test_a_form_that_is_too_large_or_cannot_be_read_is_refused(site: Site) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with site.browser() as browser:
        headers = {**form, "origin": site.address}
        assert (await browser.post("/sign-in", content=b"a=" + b"x" * 70_000, headers=headers)).status_code == 413
        assert (await browser.post("/sign-in", content=b"\xff\xfe", headers=headers)).status_code == 400
        assert (await browser.post("/sign-in", content=b"&".join([b"a=1"] * 500), headers=headers)).status_code == 400


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "a b", "[::1].evil"])
@only_sqlite
async def test_page_whose_name_was_pointed_here_cannot_sign_in(site: Site, host: str) -> None:
    """DNS rebinding: the name is the attacker's, and so is the origin."""
    async with site.browser() as browser:
        headers = {"host": host, "origin": f"http://{host}"}
        answer = await browser.post("/sign-in", data={"name": "vera", "password": PASSWORD}, headers=headers)
        assert answer.status_code == 403 and "set-cookie" not in answer.headers


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "inbox", "inbox:8000", "10.0.0.7"])
@only_sqlite
async def test_addresses_and_local_names_are_hosts_of_ours(site: Site, host: str) -> None:
    async with site.browser() as browser:
        headers = {"host": host, "origin": f"http://{host}"}
        answer = await browser.post("/sign-in", data={"name": "vera", "password": PASSWORD}, headers=headers)
        assert answer.status_code == 303


@only_sqlite
async def test_a_scraper_may_use_any_name_of_this_machine(site: Site) -> None:
    async with site.browser() as browser:
        assert (await browser.get("/metrics", headers={"host": "hooks.internal.example:8000"})).status_code == 200


@only_sqlite
async def test_behind_a_proxy_the_public_address_is_an_origin_of_ours(inbox: Inbox) -> None:
    public = {**CONFIGURED, "public_url": "https://hooks.example.com"}
    async with dashboard_of(inbox, public) as site, site.browser() as browser:
        headers = {"origin": "https://hooks.example.com"}
        answer = await browser.submit("/sign-in", {"name": "vera", "password": PASSWORD}, headers=headers)
        assert answer.status_code == 303 and "Secure" in answer.headers["set-cookie"]


# -- the command ----------------------------------------------------------------------------------------------------


def run(*arguments: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run([ONCEHOOK, *arguments], input=given, capture_output=True, text=True, timeout=20)


def test_access_prints_lines_that_let_a_person_in() -> None:
    done = run("access", "jane", "--role", "operator", given=PASSWORD + "\n")
    settings = read_dashboard(tomllib.loads(done.stdout)["dashboard"])
    assert is_password(PASSWORD, settings.users["jane"].password) and settings.users["jane"].role == "operator"
    assert PASSWORD not in done.stdout


def test_access_prints_a_token_once_and_its_hash_for_the_file() -> None:
    done = run("access", "ci", "--token", "--scope", "read", "--scope", "replay")
    token = done.stderr.splitlines()[-1]
    settings = read_dashboard(tomllib.loads(done.stdout)["dashboard"])
    found = Access(settings, b"key").check_token(token)
    assert found is not None and found.scopes == {"read", "replay"} and token not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["jane"], "short\n"),
        (["a b"], PASSWORD),
        (["jane", "--scope", "read"], PASSWORD),
        (["x", "--role", "root"], ""),
    ],
)
def test_access_refuses_what_would_not_work(arguments: list[str], given: str) -> None:
    done = run("access", *arguments, given=given)
    assert done.returncode == 2 and done.stdout == ""


@only_sqlite
async def test_a_program_needs_no_origin_and_a_cookie_beside_a_wrong_token_counts_for_nothing(site: Site) -> None:
    async with site.signed_in() as browser:
        wrong = await browser.get("/api/sources", headers={"authorization": "Bearer wrong"})
        assert wrong.status_code == 401
    async with site.program("admin") as program:
        answer: httpx.Response = await program.post("/api/replays", json={"status": "failed", "dry_run": True})
        assert answer.status_code == 200
