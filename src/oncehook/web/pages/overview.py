"""The overview page: rates over time, the backlog and open incidents. Before the first event, it shows how to start."""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from oncehook.alerts.monitor import advice
from oncehook.model.errors import StoreUnavailable
from oncehook.runtime.parts import intake_statuses
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
    queue = context.runtime.work_queue
    intakes = await intake_statuses(context.runtime.parts)
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
        intakes=intakes,
        total=total,
        queue=None if queue is None else await queue.summary(),
        is_slow=is_slow,
        most=MAX_COUNT,
        incidents=incidents,
        processes=await list_processes(context),
        replica=None if context.runtime.replica is None else context.runtime.replica.monitor.state,
        advice=advice(incidents),
    )


@dataclass(frozen=True, slots=True)
class LiveProcess:
    """A live process that handles events, on any host."""

    name: str
    sources: tuple[str, ...]
    seen_at: str
    tasks: tuple[str, ...]  # the tasks whose leader it is


async def list_processes(context: Context) -> list[LiveProcess]:
    """Return the live processes with a worker on all hosts, and which of them is the leader of a task."""
    rows = await context.store.roster.live_handlers()
    leaders = [row for row in await context.runtime.store.leadership.leaders() if row.is_held]
    processes = []
    for name in sorted({row.worker for row in rows}):
        own = [row for row in rows if row.worker == name]
        sources = tuple(sorted({row.source for row in own}))
        tasks = tuple(row.task for row in leaders if _process(row.leader) == _process(name))
        processes.append(LiveProcess(name, sources, max(row.seen_at for row in own), tasks))
    return processes


def _process(name: str) -> str:
    """The host and the number of a process, without the random part of its name."""
    return name.rpartition(":")[0]


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
