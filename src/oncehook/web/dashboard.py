"""The dashboard and the JSON API as one ASGI app: every page and endpoint is behind the same guard."""

from functools import cache
from pathlib import Path

import jinja2
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles

from oncehook import __version__
from oncehook.operations.replay_runs import ReplayRuns
from oncehook.receiver.request import Receive, Scope, Send
from oncehook.runtime import Runtime
from oncehook.web import filters
from oncehook.web.api import ENDPOINTS
from oncehook.web.auth import Access
from oncehook.web.doctor import DiagnosisCache
from oncehook.web.guard import Guard, guarded
from oncehook.web.live import Live
from oncehook.web.overview import Overview
from oncehook.web.page import Action, Context, Page, Problem
from oncehook.web.pages import (
    audit,
    consumers,
    dead,
    effects,
    email,
    event,
    events,
    overview,
    sign_in,
    sources,
    tenants,
)
from oncehook.web.settings import read_dashboard

PAGES: tuple[Page, ...] = (
    overview.PAGE,
    events.PAGE,
    dead.PAGE,
    effects.PAGE,
    email.PAGE,
    sources.PAGE,
    consumers.PAGE,
    audit.PAGE,
)
"""The pages in the navigation, in its order."""

UNLISTED: tuple[Page, ...] = (event.PAGE, sign_in.PAGE, tenants.PAGE)
HERE = Path(__file__).parent


def actions() -> list[Action]:
    """Every action of every page, and every endpoint."""
    return [*(action for page in (*PAGES, *UNLISTED) for action in page.actions), *ENDPOINTS]


class Dashboard:
    """An ASGI app. `close` ends its event streams, `stop` its replay runs."""

    def __init__(self, runtime: Runtime, run_key: str, *, stream_seconds: float | None = None) -> None:
        access = Access(read_dashboard(runtime.configuration.dashboard), run_key.encode())
        self.run_key = run_key
        self.access = access
        self.live = Live(runtime.all_shards.stats, stream_seconds)
        self.runs = ReplayRuns(runtime.all_shards)
        context = Context(
            runtime=runtime,
            access=access,
            live=self.live,
            overview=Overview(runtime),
            runs=self.runs,
            diagnoses=DiagnosisCache(runtime),
            pages=PAGES,
            render_template=_renderer(),
        )
        routes: list[Route | Mount] = [
            Route(action.path, guarded(context, action), methods=[action.method]) for action in actions()
        ]
        routes += [Route("/favicon.ico", _icon), Mount("/static", StaticFiles(directory=HERE / "static"))]
        self.router = Router(routes, redirect_slashes=False, default=_not_found)
        self._guard = Guard(self.router, context)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guard(scope, receive, send)

    def close(self) -> None:
        """End the event streams, so that no connection stays open."""
        self.live.stop()

    async def stop(self) -> None:
        """Stop the replay runs. Call it before the store is closed."""
        await self.runs.stop()


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise Problem(404, "not_found", "This page does not exist.")


async def _icon(request: Request) -> Response:
    return Response((HERE / "static" / "icon.svg").read_bytes(), media_type="image/svg+xml")


@cache
def _renderer() -> "filters.Render":
    """Make the template renderer. Templates escape every value, and fail on an undefined name.

    All dashboards of a process share it: each template is compiled once.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=filters.finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= filters.FILTERS
    environment.globals |= {"version": __version__, "chart_size": filters.CHART_SIZE}

    def render(template: str, values: dict[str, object]) -> str:
        return environment.get_template(template).render(values)

    return render
