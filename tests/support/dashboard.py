"""A dashboard behind a real server, with a browser session and an API client for it."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from oncehook import Inbox
from oncehook.testing import deliver
from oncehook.web.auth import Principal, hash_password, hash_token
from oncehook.web.dashboard import Dashboard
from oncehook.web.settings import SCOPES
from tests.support.events import stripe_body
from tests.support.serve import served

both_databases = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
"""Runs a test of tests/web on both databases; the others run on SQLite."""

PASSWORD = "correct horse battery"
TOKENS = {"reader": ["read"], "replayer": ["read", "replay"], "admin": ["read", "replay", "admin"]}
HASH = hash_password(PASSWORD, cost=4)  # cheap: tests/web/test_auth.py tests the real cost

CONFIGURED: dict[str, Any] = {
    "session_key": "a long and random session key",
    "users": {
        "vera": {"password": HASH, "role": "viewer"},
        "otto": {"password": HASH, "role": "operator"},
    },
    "tokens": {name: {"token": hash_token(f"token-of-{name}"), "scopes": scopes} for name, scopes in TOKENS.items()},
}


class Browser(httpx.AsyncClient):
    """A session: it keeps cookies, and sends the origin and the form token with each form."""

    async def sign_in(self, name: str, password: str = PASSWORD) -> httpx.Response:
        return await self.submit("/sign-in", {"name": name, "password": password})

    async def submit(self, path: str, fields: Mapping[str, str] | None = None, **more: Any) -> httpx.Response:
        headers = {"origin": str(self.base_url).rstrip("/"), **more.pop("headers", {})}
        return await self.post(path, data={"csrf": await self.form_token(), **(fields or {})}, headers=headers, **more)

    async def form_token(self) -> str:
        page = await self.get("/audit")
        match = re.search(r'name="csrf" value="([^"]+)"', page.text)
        return match[1] if match else ""


class Site:
    """A served dashboard."""

    def __init__(self, address: str, dashboard: Dashboard) -> None:
        self.address = address
        self.dashboard = dashboard

    def browser(self) -> Browser:
        """A browser without a session."""
        return Browser(base_url=self.address, timeout=30, verify=False)  # reading certificates takes 20 ms

    @asynccontextmanager
    async def signed_in(self, name: str = "otto") -> AsyncIterator[Browser]:
        async with self.browser() as browser:
            assert (await browser.sign_in(name)).status_code == 303
            yield browser

    def program(self, name: str | None = "admin") -> httpx.AsyncClient:
        """An API client with the token of this name, or with none."""
        headers = {"authorization": f"Bearer token-of-{name}"} if name else {}
        return httpx.AsyncClient(base_url=self.address, headers=headers, timeout=30, verify=False)


@asynccontextmanager
async def dashboard_of(inbox: Inbox, configured: Mapping[str, Any] | None = None) -> AsyncIterator[Site]:
    """Serves the inbox and its dashboard; `configured` replaces the users and tokens."""
    settings = CONFIGURED if configured is None else configured
    inbox._runtime.configuration = replace(inbox._runtime.configuration, dashboard=settings)
    dashboard = Dashboard(inbox._runtime, "the key of this run")
    async with served(inbox, dashboard) as port:
        yield Site(f"http://127.0.0.1:{port}", dashboard)


def make_request(actor: str = "user:otto", **path_params: object) -> Request:
    """A request of an authenticated actor, as an action receives it."""
    principal = Principal(actor, frozenset(SCOPES))
    headers = [(b"host", b"inbox.test")]
    scope = {"type": "http", "scheme": "http", "path": "/", "query_string": b"", "headers": headers}
    return Request({**scope, "principal": principal, "path_params": path_params})


async def send(inbox: Inbox, event_id: str, type_: str = "invoice.paid", **more: Any) -> int:
    """Delivers a Stripe event and returns its receipt."""
    response = await deliver(inbox, "stripe", stripe_body(event_id, type_, **more))
    return int(response.json["receipt"])


def next_page(html: str) -> str | None:
    """The link to the next page of a list."""
    match = re.search(r'rel="next" href="([^"]+)"', html)
    return match[1].replace("&amp;", "&") if match else None
