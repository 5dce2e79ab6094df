"""The parts of a page: its actions, the scope that each action needs, and the context that each action receives.

A page is a module in `web/pages/` with a `PAGE`, and its templates. To add a page, also add it to the list in
`dashboard.py`.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from oncehook.model.errors import OncehookError
from oncehook.operations.replay_runs import ReplayRuns
from oncehook.runtime import Runtime
from oncehook.runtime.read_replica import store_to_show
from oncehook.store.store import Store
from oncehook.web.auth import Access, Principal
from oncehook.web.doctor import DiagnosisCache
from oncehook.web.live import Live
from oncehook.web.overview import Overview

ROOT, RECEIVER = "oncehook.root", "oncehook.receiver"
"""Keys in the scope of a mounted dashboard: its own mount path, and the mount path of the inbox."""

SEEN = "oncehook.seen"
"""Key in the scope of a request: the state of the database that its page shows at least."""

_LINK = re.compile(r'( (?:href|action|src)=")(?=/)')


class Problem(OncehookError):
    """A request that failed. The client sees the message."""

    def __init__(self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


@dataclass(slots=True, kw_only=True)
class Context:
    """Shared objects that every action receives with the request."""

    runtime: Runtime
    access: Access
    live: Live
    overview: Overview
    runs: ReplayRuns
    diagnoses: DiagnosisCache
    pages: tuple["Page", ...]
    render_template: Callable[[str, dict[str, Any]], str]

    @property
    def store(self) -> Store:
        return self.runtime.all_shards

    @property
    def reads(self) -> Store:
        """The store for what a page only shows: a read replica, if one is configured, up to some seconds behind."""
        return store_to_show(self.runtime)

    def client_address(self, request: Request) -> str:
        """The client's IP address: of the peer, or the one that a trusted proxy reports."""
        return self.runtime.proxies.client(request.scope)

    def receiver_url(self, request: Request) -> str:
        """The URL that providers send to, without the source. Its host is that of `public_url` or of this request."""
        host = f"{request.scope['scheme']}://{request.headers.get('host', '127.0.0.1')}"
        return f"{self.access.settings.origin or host}{request.scope.get(RECEIVER, '/webhooks')}"

    def render(self, request: Request, template: str, /, *, status: int = 200, **values: Any) -> Response:
        principal: Principal | None = request.scope.get("principal")
        common = {
            "principal": principal,
            "csrf": principal.csrf if principal else "",
            "pages": [page for page in self.pages if page.is_shown(self.runtime)],
            "path": request.scope["path"],
            "missing_shards": sorted(self.store.missing) if principal else [],
            "seen": request.scope.get(SEEN, ""),
            "may_replay": principal is not None and principal.may("replay"),
            "may_change": principal is not None and principal.may("admin"),
        }
        html = self.render_template(template, common | values)
        return HTMLResponse(with_root(html, request.scope.get(ROOT, "")), status)


def with_root(html: str, root: str) -> str:
    """Prefix the links of a page with `root`. Quotes in senders' texts are escaped, so they never match."""
    return _LINK.sub(lambda match: match[1] + escape(root), html) if root else html


Handler = Callable[[Context, Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Action:
    """A method and path. GET changes nothing; every other method needs the session's form token."""

    method: str
    path: str
    handler: Handler
    scope: str | None = "read"  # None: no authentication


def always(runtime: Runtime) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the dashboard. The navigation lists it if `is_shown`."""

    title: str
    path: str
    actions: tuple[Action, ...] = field(default=())
    is_shown: Callable[[Runtime], bool] = always


def form(request: Request) -> dict[str, str]:
    """The form fields of the request. For a repeated field, the last value counts."""
    fields: dict[str, str] = request.state.form
    return fields


def principal(request: Request) -> Principal:
    """The authenticated principal of a request. Only for actions that need a scope."""
    authenticated: Principal = request.scope["principal"]
    return authenticated


def parse_id(text: str) -> int | None:
    """Parse the id of a row; None if `text` is not an id."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


MAX_FIELD_LENGTH = 2000
"""Maximum characters of a field. No id, type, object or address is longer."""


def check_texts(fields: Mapping[str, str], max_length: int = MAX_FIELD_LENGTH) -> None:
    """Raise Problem for a field that a database would reject."""
    for name, value in fields.items():
        if len(value) > max_length or "\0" in value or not _is_text(value):
            raise Problem(422, "bad_filter", f"{name} is too long or is not valid text.")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
