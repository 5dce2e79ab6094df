"""The overview: rates over time, and where everything stands."""

from starlette.requests import Request
from starlette.responses import Response

from oncehook.alerts.monitor import advice
from oncehook.model.errors import StoreUnavailable
from oncehook.web.charts import chart
from oncehook.web.overview import MOST, RANGES, SERIES
from oncehook.web.page import Action, Context, Page

MEANING = {
    "received": "Events that were accepted for the first time.",
    "duplicate": "Deliveries of events that were here before; acked, and nothing done again.",
    "rejected": "Deliveries that were rejected: forged, stale, malformed or to no source.",
    "failed": "Attempts of handlers that failed, whether or not they will be tried again.",
}


async def show(context: Context, request: Request) -> Response:
    over = RANGES.get(request.query_params.get("range", "")) or await context.overview.usual_range()
    total = await context.overview.total()
    if total["is_empty"]:
        return context.render(request, "start.html", base=context.door_url(request), sources=_sources(context))
    incidents = await context.runtime.alerts.incidents()
    charts, rows, is_slow = {}, [], False
    try:
        buckets, series = await context.overview.rates(over.name)
        charts = {name: chart(buckets, series[name], over.bucket) for name in SERIES}
        rows = await context.overview.sources(over.name)
    except StoreUnavailable:
        is_slow = True
    return context.render(
        request,
        "overview.html",
        over=over,
        ranges=RANGES.values(),
        charts=charts,
        meaning=MEANING,
        rows=rows,
        total=total,
        is_slow=is_slow,
        most=MOST,
        incidents=incidents,
        advice=advice(incidents),
    )


def _sources(context: Context) -> list[dict[str, str]]:
    """Each source with a type that one could send to try it."""
    return [
        {
            "name": name,
            "title": source.provider.title or source.provider_name,
            "secret": source.provider.secret,
            "type": next((e.type for e in source.provider.examples if e.type.isalnum() or "." in e.type), "test"),
        }
        for name, source in sorted(context.runtime.sources.items())
    ]


PAGE = Page("Overview", "/", (Action("GET", "/", show),))
