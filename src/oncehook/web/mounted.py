"""The dashboard mounted in another ASGI app, below that app's mount path.

Pages use paths that start at the dashboard's root. Each response gets the mount path in front of its links, its
redirects and the path of its cookies.
"""

import secrets

from oncehook.inbox import Inbox
from oncehook.model.errors import ConfigurationError
from oncehook.receiver.ack import unavailable_response
from oncehook.receiver.asgi import path_below_mount
from oncehook.receiver.request import Message, Receive, Scope, Send, respond
from oncehook.web.dashboard import Dashboard
from oncehook.web.page import RECEIVER, ROOT

STREAM_SECONDS = 3.0
"""How long an event stream lasts before the page opens the next one. A stopping server waits for open streams."""


class MountedDashboard:
    """An ASGI app to mount. It starts and stops with the inbox; the outer app must run the inbox's lifespan."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.dashboard: Dashboard | None = None

    def start(self) -> None:
        """Read the settings. Raises ConfigurationError if they are not valid, or if they have no user and no token."""
        dashboard = Dashboard(self.inbox._runtime, secrets.token_hex(32), stream_seconds=STREAM_SECONDS)
        if dashboard.access.uses_run_token:
            raise ConfigurationError(
                "inbox.dashboard is mounted, but no user or token is configured. Run `oncehook access NAME` and add "
                "the table that it prints, [dashboard.users.NAME], to oncehook.toml"
            )
        self.dashboard = dashboard

    async def stop(self) -> None:
        """End the event streams and the replay runs. Call it before the store is closed."""
        dashboard, self.dashboard = self.dashboard, None
        if dashboard is not None:
            dashboard.close()
            await dashboard.stop()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http" and self.dashboard is None:
            await respond(send, unavailable_response(5))
        elif scope["type"] == "http" and self.dashboard is not None:
            root: str = scope.get("root_path", "").rstrip("/")
            path = path_below_mount(scope)
            inside = {**scope, "path": path or "/", "raw_path": None, "root_path": ""}
            inside |= {ROOT: root, RECEIVER: receiver_path(scope, self.inbox)}
            await self.dashboard(inside, receive, with_mount_path(send, root.encode("latin-1", "replace")))


def with_mount_path(send: Send, root: bytes) -> Send:
    """Prefix redirects and cookie paths with the mount path."""

    async def send_on(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [(name, _add_prefix(name, value, root)) for name, value in message["headers"]]
        await send(message)

    return send_on


def _add_prefix(name: bytes, value: bytes, root: bytes) -> bytes:
    if name == b"location" and value.startswith(b"/"):
        return root + value
    return value.replace(b"; Path=/;", b"; Path=" + (root or b"/") + b";") if name == b"set-cookie" else value


def receiver_path(scope: Scope, inbox: Inbox) -> str:
    """The path where the same app mounts the inbox, for the URLs on the pages; /webhooks if there is no such route."""
    routes = getattr(scope.get("app"), "routes", ())
    path = next((route.path for route in routes if getattr(route, "app", None) is inbox), "/webhooks")
    return str(scope.get("app_root_path", "")) + str(path)
