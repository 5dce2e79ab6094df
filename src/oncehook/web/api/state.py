"""Where everything stands, in JSON: overview, dead letters, sources, alerts, audit."""

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oncehook.model.rows import Pause
from oncehook.model.timestamps import rfc3339
from oncehook.operations.dead_letters import MOST_ERRORS, grouped
from oncehook.web.api.endpoint import Endpoint, answer, read_body, read_query
from oncehook.web.api.schemas.alerts import AlertsState
from oncehook.web.api.schemas.audit import Audit, AuditQuery
from oncehook.web.api.schemas.events import Dead
from oncehook.web.api.schemas.overview import OverviewQuery, OverviewState
from oncehook.web.api.schemas.sources import Paused, PauseFor, Sources
from oncehook.web.audit import look
from oncehook.web.overview import RANGES
from oncehook.web.page import Context
from oncehook.web.sources import about, change, last_refusals

TOLD = (
    "source",
    "provider",
    "is_verified",
    "secrets",
    "mode",
    "types",
    "dedupe_window",
    "payload_retention",
    "support",
)


async def overview(context: Context, request: Request) -> Response:
    query = read_query(request, OverviewQuery)
    buckets, series = await context.overview.rates(query.range, query.source or None)
    total = await context.overview.total()
    total = {name: value for name, value in total.items() if name != "is_empty"}
    starts = [rfc3339(datetime.fromtimestamp(bucket, UTC)) for bucket in buckets]
    over = {"range": query.range, "bucket_seconds": RANGES[query.range].bucket, "buckets": starts}
    return answer({**over, **series, **total})


async def dead(context: Context, request: Request) -> Response:
    groups = grouped(await context.store.stats.dead_letters(MOST_ERRORS))
    return answer({"total": sum(group["receipts"] for group in groups), "groups": groups})


async def sources(context: Context, request: Request) -> Response:
    standing = await context.overview.standing()
    looked = await context.doctor.look()
    names = sorted(context.runtime.sources)
    return answer({"sources": [_source(context, request, standing, looked, name) for name in names]})


def _source(context: Context, request: Request, standing: dict[str, Any], looked: Any, name: str) -> dict[str, Any]:
    known, pause = about(context, name), standing["paused"].get(name)
    cases, secrets = looked
    last, examined = last_refusals(context, name, cases.get(name))
    return {
        **{key: known[key] for key in TOLD},
        "address": f"{context.door_url(request)}/{name}",
        "waiting": standing["waiting"].get(name, 0),
        "unhandled": standing["unhandled"].get(name, 0),
        "dead_letters": standing["dead_letters"].get(name, 0),
        "lag_seconds": round(max(0.0, standing["lag"].get(name, 0.0)), 3),
        "oldest_unfinished_seconds": round(max(0.0, standing["unfinished"].get(name, 0.0)), 3),
        "last_received_at": standing["last_received_at"].get(name),
        "last_refused": last,
        "last_examined": examined,
        "secrets_used": [{key: value for key, value in row.items() if key != "source"} for row in secrets[name]],
        "paused": _pause(pause) if pause else None,
    }


def _pause(row: Pause) -> dict[str, Any]:
    return {"at": row.paused_at, "actor": row.actor, "reason": row.reason, "until": row.ends_at}


async def pause(context: Context, request: Request) -> Response:
    body = read_body(request, PauseFor) if request.state.body else PauseFor()
    source = await change(context, request, paused=True, reason=body.reason, seconds=body.seconds)
    return answer({"source": source, "paused": True})


async def resume(context: Context, request: Request) -> Response:
    return answer({"source": await change(context, request, paused=False), "paused": False})


async def alerts(context: Context, request: Request) -> Response:
    watching = context.runtime.alerts
    return answer({"incidents": await watching.incidents(), "rules": await watching.rule_states()})


async def audit(context: Context, request: Request) -> Response:
    query = read_query(request, AuditQuery)
    rows, more = await look(context, query.cursor, query.limit)
    return answer({"rows": rows, "next": None if more is None else str(more)})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/overview",
        overview,
        summary="Rates over time, backlog, lag and latencies.",
        query=OverviewQuery,
        answer=OverviewState,
    ),
    Endpoint("GET", "/api/dead", dead, summary="Dead letters, grouped by what went wrong.", answer=Dead),
    Endpoint("GET", "/api/sources", sources, summary="Every configured source.", answer=Sources),
    Endpoint(
        "POST",
        "/api/sources/{source}/pause",
        pause,
        scope="admin",
        summary="Accept its events, and work on none of them.",
        body=PauseFor,
        answer=Paused,
    ),
    Endpoint(
        "POST",
        "/api/sources/{source}/resume",
        resume,
        scope="admin",
        summary="Handle its waiting events.",
        answer=Paused,
    ),
    Endpoint(
        "GET",
        "/api/alerts",
        alerts,
        summary="The open incidents, and what every rule measures now.",
        answer=AlertsState,
    ),
    Endpoint(
        "GET",
        "/api/audit",
        audit,
        summary="What people did, newest first.",
        query=AuditQuery,
        answer=Audit,
    ),
)
