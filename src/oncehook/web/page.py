"""What a page is made of: its actions, what each of them needs, and what every one of them is given.

A page is a module in `web/pages/` with a `PAGE`, and its templates. Adding one touches the list in `dashboard.py`.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from oncehook.model.errors import OncehookError
from oncehook.operations.replay_runs import Runs
from oncehook.runtime import Runtime
from oncehook.store.store import Store
from oncehook.web.auth import Access, Principal
from oncehook.web.doctor import Doctor
from oncehook.web.live import Live
from oncehook.web.overview import Overview

ROOT, DOOR = "oncehook.root", "oncehook.door"
"""In the scope of a mounted dashboard: the path where it is mounted, and where the inbox is."""

_LINK = re.compile(r'( (?:href|action|src)=")(?=/)')


class Problem(OncehookError):
    """A request that cannot be answered as asked. The message is for whoever asked."""

    def __init__(self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


@dataclass(slots=True, kw_only=True)
class Context:
    """What every action is given beside the request."""

    runtime: Runtime
    access: Access
    live: Live
    overview: Overview
    runs: Runs
    doctor: Doctor
    pages: tuple["Page", ...]
    render_template: Callable[[str, dict[str, Any]], str]

    @property
    def store(self) -> Store:
        return self.runtime.store

    def client(self, request: Request) -> str:
        """The address of whoever asks, as far as it is known: the peer's, or what the proxies in front say."""
        return self.runtime.proxies.client(request.scope)

    def door_url(self, request: Request) -> str:
        """Where senders deliver, without the source: at the configured address, else where this request was sent to."""
        host = f"{request.scope['scheme']}://{request.headers.get('host', '127.0.0.1')}"
        return f"{self.access.settings.origin or host}{request.scope.get(DOOR, '/webhooks')}"

    def render(self, request: Request, template: str, /, *, status: int = 200, **values: Any) -> Response:
        principal: Principal | None = request.scope.get("principal")
        given = {
            "principal": principal,
            "csrf": principal.csrf if principal else "",
            "pages": [page for page in self.pages if page.is_shown(self.runtime)],
            "path": request.scope["path"],
            "may_replay": principal is not None and principal.may("replay"),
            "may_change": principal is not None and principal.may("admin"),
        }
        html = self.render_template(template, given | values)
        return HTMLResponse(with_root(html, request.scope.get(ROOT, "")), status)


def with_root(html: str, root: str) -> str:
    """A page whose links lead below `root`. A sender's text cannot look like one: its quotes are escaped."""
    return _LINK.sub(lambda found: found[1] + escape(root), html) if root else html


Handler = Callable[[Context, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that can be asked for. GET changes nothing; everything else needs the session's own form token."""

    method: str
    path: str
    handler: Handler
    scope: str | None = "read"  # None: nobody need have signed in


def always(runtime: Runtime) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the dashboard, as the navigation has it where it `is_shown`."""

    title: str
    path: str
    actions: tuple[Action, ...] = field(default=())
    is_shown: Callable[[Runtime], bool] = always


def form(request: Request) -> dict[str, str]:
    """The fields of the form that came with this request; of one that came twice, the last."""
    fields: dict[str, str] = request.state.form
    return fields


def principal(request: Request) -> Principal:
    """Who asks: an action that needs a scope is not reached without."""
    found: Principal = request.scope["principal"]
    return found


def number(name: str) -> int | None:
    """A row's number out of an address; None for what is none."""
    return int(name) if name.isascii() and name.isdigit() and len(name) < 19 else None


LONGEST = 2000
"""Characters of a field: no id, type, object or address is longer."""


def check_texts(given: Mapping[str, str], longest: int = LONGEST) -> None:
    """Raises Problem for a field that no database takes."""
    for name, value in given.items():
        if len(value) > longest or "\0" in value or not _is_text(value):
            raise Problem(422, "bad_filter", f"{name} is not usable: it is too long, or not a text.")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
