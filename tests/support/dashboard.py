"""The dashboard behind a real server, and its clients: a session, a program with a token, an anonymous client."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx

from oncehook import Inbox
from oncehook.web.auth import hash_password, hash_token
from oncehook.web.dashboard import Dashboard
from tests.support.serve import served

PASSWORD = "correct horse battery"
TOKENS = {"reader": ["read"], "replayer": ["read", "replay"], "admin": ["read", "replay", "admin"]}
HASH = hash_password(PASSWORD, cost=4)  # quick: what a real one costs is tested by itself

CONFIGURED: dict[str, Any] = {
    "session_key": "a long and random session key",
    "users": {
        "vera": {"password": HASH, "role": "viewer"},
        "otto": {"password": HASH, "role": "operator"},
    },
    "tokens": {name: {"token": hash_token(f"token-of-{name}"), "scopes": scopes} for name, scopes in TOKENS.items()},
}


class Browser(httpx.AsyncClient):
    """A session: it keeps cookies, sends the Origin of its forms, and fills in their tokens."""

    async def sign_in(self, name: str, password: str = PASSWORD) -> httpx.Response:
        return await self.submit("/sign-in", {"name": name, "password": password})

    async def submit(self, path: str, fields: Mapping[str, str] | None = None, **more: Any) -> httpx.Response:
        headers = {"origin": str(self.base_url).rstrip("/"), **more.pop("headers", {})}
        return await self.post(path, data={"csrf": await self.form_token(), **(fields or {})}, headers=headers, **more)

    async def form_token(self) -> str:
        page = await self.get("/audit")
        found = re.search(r'name="csrf" value="([^"]+)"', page.text)
        return found[1] if found else ""


@asynccontextmanager
async def dashboard_of(inbox: Inbox, configured: Mapping[str, Any] | None = None) -> AsyncIterator["Site"]:
    """The inbox served with its dashboard, with these users and tokens."""
    settings = CONFIGURED if configured is None else configured
    inbox._runtime.configuration = replace(inbox._runtime.configuration, dashboard=settings)
    dashboard = Dashboard(inbox._runtime, "the key of this run")
    async with served(inbox, dashboard) as port:
        yield Site(f"http://127.0.0.1:{port}", dashboard)


class Site:
    """A served dashboard."""

    def __init__(self, address: str, dashboard: Dashboard) -> None:
        self.address = address
        self.dashboard = dashboard

    def browser(self) -> Browser:
        return Browser(base_url=self.address, timeout=30)

    @asynccontextmanager
    async def signed_in(self, name: str = "otto") -> AsyncIterator[Browser]:
        async with self.browser() as browser:
            assert (await browser.sign_in(name)).status_code == 303
            yield browser

    def program(self, name: str | None = "admin") -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer token-of-{name}"} if name else {}
        return httpx.AsyncClient(base_url=self.address, headers=headers, timeout=30, verify=False)
