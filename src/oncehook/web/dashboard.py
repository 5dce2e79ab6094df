"""The dashboard and the JSON API: every page and endpoint behind one guard, as an ASGI app for `serve`."""

from pathlib import Path

import jinja2
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from oncehook import __version__
from oncehook.operations.replay_runs import Runs
from oncehook.receiver.request import Receive, Scope, Send
from oncehook.runtime import Runtime
from oncehook.web import filters
from oncehook.web.api import ENDPOINTS
from oncehook.web.auth import Access
from oncehook.web.doctor import Doctor
from oncehook.web.guard import Guard, guarded
from oncehook.web.live import Live
from oncehook.web.overview import Overview
from oncehook.web.page import Action, Context, Page, Problem
from oncehook.web.pages import audit, dead, effects, email, event, events, overview, sign_in, sources
from oncehook.web.settings import read_dashboard

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    events.PAGE,
    dead.PAGE,
    effects.PAGE,
    email.PAGE,
    sources.PAGE,
    audit.PAGE,
)
"""In the order of the navigation."""

UNLISTED: tuple[Page, ...] = (event.PAGE, sign_in.PAGE)
HERE = Path(__file__).parent


def actions() -> list[Action]:
    """Everything that can be asked for."""
    return [*(action for page in (*PAGES, *UNLISTED) for action in page.actions), *ENDPOINTS]


class Dashboard:
    """An ASGI app. Its streams end with `close`, its replays with `stop`."""

    def __init__(self, runtime: Runtime, run_key: str, *, stream_seconds: float | None = None) -> None:
        access = Access(read_dashboard(runtime.configuration.dashboard), run_key.encode())
        self.run_key = run_key
        self.access = access
        self.live = Live(runtime.store.stats, stream_seconds)
        self.runs = Runs(runtime.store)
        context = Context(
            runtime=runtime,
            access=access,
            live=self.live,
            overview=Overview(runtime),
            runs=self.runs,
            doctor=Doctor(runtime),
            pages=PAGES,
            render_template=_renderer(),
        )
        routes: list[Route | Mount] = [
            Route(action.path, guarded(context, action), methods=[action.method]) for action in actions()
        ]
        routes += [Route("/favicon.ico", _icon), Mount("/static", StaticFiles(directory=HERE / "static"))]
        self.router = Router(routes, redirect_slashes=False, default=_nothing)
        self._guard = Guard(self.router, context)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guard(scope, receive, send)

    def close(self) -> None:
        """From here on nothing keeps a connection open."""
        self.live.stop()

    async def stop(self) -> None:
        """End what runs in the background; before the store is closed."""
        await self.runs.stop()


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    raise Problem(404, "not_found", "There is nothing at this address.")


async def _icon(request: Request) -> Response:
    return Response((HERE / "static" / "icon.svg").read_bytes(), media_type="image/svg+xml")


def _renderer() -> "filters.Render":
    """Templates that escape whatever they are given, and fail on a name that they are not given."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=filters.shown,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= filters.FILTERS
    environment.globals |= {"version": __version__, "chart_size": filters.CHART_SIZE}

    def render(template: str, values: dict[str, object]) -> str:
        return environment.get_template(template).render(values)

    return render
