"""The ASGI service: the receiver under /webhooks/, the health probes, the metrics and the dashboard."""

from collections.abc import Awaitable, Callable
from hmac import compare_digest

from oncehook.inbox import Inbox
from oncehook.model.errors import Unavailable
from oncehook.receiver.ack import TEXT, Response, rejected_response, unavailable_response
from oncehook.receiver.request import CLOSE, PREFIX, Receive, Scope, Send, respond

METRICS_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
PROBES = ("/healthz", "/readyz", "/metrics")
NOT_READY, STOPPING = "This process cannot record events now.", "This process is stopping."
App = Callable[[Scope, Receive, Send], Awaitable[None]]
HTML = (b"content-type", b"text/html; charset=utf-8")
POLICY = (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'")

FIRST_PAGE = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Oncehook</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<style>body{font:16px/1.6 system-ui,sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem}
code{background:#8882;padding:.1em .4em;border-radius:.3em}</style>
<h1>Oncehook</h1><p>Every webhook, exactly once. This inbox is running.</p>
<p>Providers send webhooks to <code>POST /webhooks/&lt;source&gt;</code>. In the folder with your
<code>oncehook.toml</code>, <code>oncehook events</code> lists the events, and
<code>oncehook send stripe invoice.paid</code> sends a test event.</p>
<p>Health checks: <code>GET /healthz</code> (the process is alive) and <code>GET /readyz</code> (it can accept
deliveries).</p></html>
"""


class Service:
    """Serves an inbox. Without a dashboard, `/` is a static page that says the inbox is running."""

    def __init__(self, inbox: Inbox, dashboard: App | None = None) -> None:
        self.inbox = inbox
        self.runtime = inbox._runtime
        self.receiver, self.receive = self.runtime.reception.receiver, self.runtime.reception.asgi
        self.dashboard = dashboard

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        if scope["type"] != "http":
            return self.inbox(scope, receive, send)
        if scope["http_version"] == "1.1" and sum(name == b"host" for name, _ in scope["headers"]) != 1:
            return respond(send, rejected_response("malformed", CLOSE, message="Send exactly one Host header."))
        path: str = scope["path"]
        if path.startswith(PREFIX):
            return self.receive(path[len(PREFIX) :].rstrip("/"), scope, receive, send)
        if self.dashboard is None or path in PROBES:
            return self._page(path, scope, send)
        return self.dashboard(scope, receive, send)

    async def _page(self, path: str, scope: Scope, send: Send) -> None:
        method = scope["method"]
        if path == "/metrics" and method in ("GET", "HEAD"):
            response = await self._metrics(scope)
        elif path not in ("/", *PROBES):
            response = rejected_response("unknown_source", message="This URL does not exist.")
        elif method not in ("GET", "HEAD"):
            response = rejected_response("method_not_allowed", (b"allow", b"GET, HEAD"), message="Use GET.")
        elif path == "/":
            response = 200, FIRST_PAGE, (HTML, POLICY)
        elif path == "/healthz":
            response = 200, b"alive\n", (TEXT,)
        else:
            response = await self._ready()
        await respond(send, response)

    async def _metrics(self, scope: Scope) -> Response:
        token = self.runtime.settings.metrics_token
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        if token is not None and not compare_digest(authorization, b"Bearer " + token.encode()):
            return 401, b"Send the metrics token: Authorization: Bearer ...\n", (TEXT, (b"www-authenticate", b"Bearer"))
        return 200, await self.runtime.metrics_exporter.text(), (METRICS_TEXT,)

    async def _ready(self) -> Response:
        try:
            is_spooling = await self.runtime.readiness.check_delivery()
        except Unavailable as error:
            message = STOPPING if self.runtime.readiness.is_draining else NOT_READY
            return unavailable_response(error.retry_after, message)
        unavailable = "".join(f"shard {name} is unavailable\n" for name in self.runtime.readiness.unavailable)
        return 200, (b"spooling\n" if is_spooling else b"ready\n") + unavailable.encode(), (TEXT,)
