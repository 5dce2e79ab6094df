"""The overview page: rates over time, the backlog and open incidents. Before the first event, it shows how to start."""

from starlette.requests import Request
from starlette.responses import Response

from oncehook.alerts.monitor import advice
from oncehook.model.errors import StoreUnavailable
from oncehook.web.charts import chart
from oncehook.web.consumers import list_consumers
from oncehook.web.overview import MAX_COUNT, RANGES, SERIES
from oncehook.web.page import Action, Context, Page

MEANING = {
    "received": "Events accepted, without duplicates.",
    "duplicate": "Repeated deliveries of an event. They were acked and not handled again.",
    "rejected": "Deliveries rejected by the receiver: bad signature, stale, malformed or unknown source.",
    "failed": "Failed handler attempts, including those that will be retried.",
}


async def show(context: Context, request: Request) -> Response:
    selected = RANGES.get(request.query_params.get("range", "")) or await context.overview.default_range()
    total = await context.overview.total()
    if total["is_empty"]:
        return context.render(request, "start.html", base=context.receiver_url(request), sources=_sources(context))
    incidents = await context.runtime.alerts.incidents()
    charts, rows, consumers, is_slow = {}, [], [], False
    try:
        buckets, series = await context.overview.rates(selected.name)
        charts = {name: chart(buckets, series[name], selected.bucket) for name in SERIES}
        rows = await context.overview.sources(selected.name)
        consumers = await list_consumers(context)
    except StoreUnavailable:
        is_slow = True
    return context.render(
        request,
        "overview.html",
        selected=selected,
        ranges=RANGES.values(),
        charts=charts,
        meaning=MEANING,
        rows=rows,
        consumers=consumers,
        total=total,
        is_slow=is_slow,
        most=MAX_COUNT,
        incidents=incidents,
        advice=advice(incidents),
    )


def _sources(context: Context) -> list[dict[str, str]]:
    """Each source with the type of a test event."""
    return [
        {
            "name": name,
            "title": source.provider.title or source.provider_name,
            "secret": source.provider.secret if source.is_verified else "",
            "type": next((e.type for e in source.provider.examples if e.type.isalnum() or "." in e.type), "test"),
        }
        for name, source in sorted(context.runtime.sources.items())
    ]


PAGE = Page("Overview", "/", (Action("GET", "/", show),))
