"""Flask: mounts an inbox in an app, and calls its handlers in the context of the app.

    app = Flask(__name__)
    Oncehook(app, inbox)

Deliveries go to the inbox before Flask sees them, so that no hook of the app can change them.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from oncehook.concurrency.surroundings import Surrounding
from oncehook.model.errors import ConfigurationError

if TYPE_CHECKING:
    from flask import Flask

WsgiApp = Callable[[Any, Any], Iterable[bytes]]
NAME = "oncehook"


class Gateway(Protocol):
    """`inbox.wsgi`."""

    def mount(self, app: WsgiApp, prefix: str = "/webhooks") -> WsgiApp: ...


class MountableInbox(Protocol):
    """The attributes of an `Inbox` that the extension uses."""

    @property
    def wsgi(self) -> Gateway: ...

    def _surround(self, name: str, surrounding: Surrounding) -> None: ...


class Oncehook:
    """The extension. Handlers, effects and other functions of the inbox can use `current_app` and `g`.

    With an app factory, create it without an app, and call `init_app` in the factory.
    """

    def __init__(
        self, app: "Flask | None" = None, inbox: MountableInbox | None = None, *, url_prefix: str = "/webhooks"
    ) -> None:
        self.inbox = inbox
        self.url_prefix = url_prefix
        if app is not None:
            self.init_app(app)

    def init_app(self, app: "Flask", inbox: MountableInbox | None = None) -> None:
        """Mount the inbox in an app. If several apps have the same inbox, handlers run in the context of the last."""
        inbox = inbox or self.inbox
        if inbox is None:
            raise ConfigurationError("Oncehook has no inbox: pass it as Oncehook(app, inbox) or init_app(app, inbox)")
        if not self.url_prefix.strip("/"):
            raise ConfigurationError("url_prefix is empty: the inbox needs its own path, such as /webhooks")
        if NAME in app.extensions:
            raise ConfigurationError("this app has the extension Oncehook already: create it once per app")
        app.extensions[NAME] = inbox
        setattr(app, "wsgi_app", inbox.wsgi.mount(app.wsgi_app, self.url_prefix))  # noqa: B010  # as Flask advises
        inbox._surround("flask", app.app_context)
