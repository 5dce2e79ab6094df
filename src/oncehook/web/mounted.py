"""The dashboard inside another ASGI app, below the path where that mounts it.

Inside, every address is one of the dashboard's own. On the way out the path is put before it: in links, redirects and
the path of cookies.
"""

import secrets

from oncehook.inbox import Inbox, path_below
from oncehook.model.errors import ConfigurationError
from oncehook.receiver.ack import unavailable
from oncehook.receiver.request import Message, Receive, Scope, Send, respond
from oncehook.web.dashboard import Dashboard
from oncehook.web.page import DOOR, ROOT

STREAM_SECONDS = 3.0
"""How long a stream lasts before the page opens the next one: another's server waits for it when it stops."""


class MountedDashboard:
    """An ASGI app to mount. It starts and stops with the inbox, whose lifespan the app must run."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.dashboard: Dashboard | None = None

    def start(self) -> None:
        """Read the settings. Raises ConfigurationError if they are wrong, or if nobody could sign in."""
        dashboard = Dashboard(self.inbox._runtime, secrets.token_hex(32), stream_seconds=STREAM_SECONDS)
        if dashboard.access.is_open:
            raise ConfigurationError(
                "inbox.dashboard is mounted and nobody may sign in: `oncehook access NAME` makes the lines of a user "
                "for [dashboard.users.NAME] in oncehook.toml"
            )
        self.dashboard = dashboard

    async def stop(self) -> None:
        """End its streams and replays; before the store is closed."""
        dashboard, self.dashboard = self.dashboard, None
        if dashboard is not None:
            dashboard.close()
            await dashboard.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http" and self.dashboard is None:
            await respond(send, unavailable(5))
        elif scope["type"] == "http" and self.dashboard is not None:
            root: str = scope.get("root_path", "").rstrip("/")
            path = path_below(scope)
            inside = {**scope, "path": path or "/", "raw_path": None, "root_path": ""}
            inside |= {ROOT: root, DOOR: door_path(scope, self.inbox)}
            await self.dashboard(inside, receive, outward(send, root.encode("latin-1", "replace")))


def outward(send: Send, root: bytes) -> Send:
    """Puts the path where the dashboard is mounted before what the headers say."""

    async def send_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [(name, _outward(name, value, root)) for name, value in message["headers"]]
        await send(message)

    return send_on


def _outward(name: bytes, value: bytes, root: bytes) -> bytes:
    if name == b"location" and value.startswith(b"/"):
        return root + value
    return value.replace(b"; Path=/;", b"; Path=" + (root or b"/") + b";") if name == b"set-cookie" else value


def door_path(scope: Scope, inbox: Inbox) -> str:
    """Where the same app mounts the inbox itself, for the addresses that are shown; /webhooks if it is not found."""
    routes = getattr(scope.get("app"), "routes", ())
    found = next((route.path for route in routes if getattr(route, "app", None) is inbox), "/webhooks")
    return str(scope.get("app_root_path", "")) + str(found)
