"""API endpoints for the overview, dead letters, sources, alerts and the audit log."""

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from oncehook.model.rows import Pause
from oncehook.model.timestamps import rfc3339
from oncehook.operations.dead_letters import MAX_ERRORS, group_by_error
from oncehook.web.api.endpoint import Endpoint, json_response, read_body, read_query
from oncehook.web.api.schemas.alerts import AlertsState
from oncehook.web.api.schemas.audit import Audit, AuditQuery
from oncehook.web.api.schemas.events import DeadLetters
from oncehook.web.api.schemas.overview import OverviewQuery, OverviewState
from oncehook.web.api.schemas.sources import PauseRequest, PauseState, Sources
from oncehook.web.audit import list_audit
from oncehook.web.overview import RANGES
from oncehook.web.page import Context
from oncehook.web.sources import describe_source, last_rejections, set_paused

SOURCE_FIELDS = (
    "source",
    "provider",
    "is_verified",
    "secrets",
    "mode",
    "forward",
    "types",
    "where",
    "dedupe_window",
    "payload_retention",
    "support",
    "is_managed",
    "tenants",
)


async def overview(context: Context, request: Request) -> Response:
    query = read_query(request, OverviewQuery)
    buckets, series = await context.overview.rates(query.range, query.source or None)
    total = await context.overview.total()
    total = {name: value for name, value in total.items() if name != "is_empty"}
    starts = [rfc3339(datetime.fromtimestamp(bucket, UTC)) for bucket in buckets]
    header = {"range": query.range, "bucket_seconds": RANGES[query.range].bucket, "buckets": starts}
    return json_response({**header, **series, **total})


async def dead(context: Context, request: Request) -> Response:
    groups = group_by_error(await context.reads.stats.dead_letters(MAX_ERRORS))
    return json_response({"total": sum(group["receipts"] for group in groups), "groups": groups})


async def sources(context: Context, request: Request) -> Response:
    snapshot = await context.overview.snapshot()
    diagnoses = await context.diagnoses.get()
    names = sorted(context.runtime.sources)
    return json_response({"sources": [_source(context, request, snapshot, diagnoses, name) for name in names]})


def _source(context: Context, request: Request, snapshot: dict[str, Any], diagnoses: Any, name: str) -> dict[str, Any]:
    properties, pause = describe_source(context, name), snapshot["paused"].get(name)
    cases, secrets = diagnoses
    last, examined = last_rejections(context, name, cases.get(name))
    return {
        **{key: properties[key] for key in SOURCE_FIELDS},
        "address": f"{context.receiver_url(request)}/{name}",
        **snapshot["work"].figures(source=name),
        "last_received_at": snapshot["last_received_at"].get(name),
        "last_refused": last,
        "last_examined": examined,
        "secrets_used": [
            {key: value for key, value in row.items() if key != "source"} for row in secrets.get(name, ())
        ],
        "paused": _pause(pause) if pause else None,
    }


def _pause(row: Pause) -> dict[str, Any]:
    return {"at": row.paused_at, "actor": row.actor, "reason": row.reason, "until": row.ends_at}


async def pause(context: Context, request: Request) -> Response:
    body = read_body(request, PauseRequest) if request.state.body else PauseRequest()
    source = await set_paused(context, request, paused=True, reason=body.reason, seconds=body.seconds)
    return json_response({"source": source, "paused": True})


async def resume(context: Context, request: Request) -> Response:
    return json_response({"source": await set_paused(context, request, paused=False), "paused": False})


async def alerts(context: Context, request: Request) -> Response:
    monitor = context.runtime.alerts
    return json_response({"incidents": await monitor.incidents(), "rules": await monitor.rule_states()})


async def audit(context: Context, request: Request) -> Response:
    query = read_query(request, AuditQuery)
    rows, more = await list_audit(context, query.cursor, query.limit)
    return json_response({"rows": rows, "next": None if more is None else str(more)})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/overview",
        overview,
        summary="Returns rates over time, the backlog, lag and latencies.",
        query=OverviewQuery,
        response=OverviewState,
    ),
    Endpoint("GET", "/api/dead", dead, summary="Lists dead letters, grouped by error.", response=DeadLetters),
    Endpoint("GET", "/api/sources", sources, summary="Lists the configured sources.", response=Sources),
    Endpoint(
        "POST",
        "/api/sources/{source}/pause",
        pause,
        scope="admin",
        summary="Pauses a source: its events are accepted but not handled.",
        body=PauseRequest,
        response=PauseState,
    ),
    Endpoint(
        "POST",
        "/api/sources/{source}/resume",
        resume,
        scope="admin",
        summary="Resumes a source: its waiting events are handled.",
        response=PauseState,
    ),
    Endpoint(
        "GET",
        "/api/alerts",
        alerts,
        summary="Returns the open incidents and the current value of every alert rule.",
        response=AlertsState,
    ),
    Endpoint(
        "GET",
        "/api/audit",
        audit,
        summary="Lists actions of users and tokens, newest first.",
        query=AuditQuery,
        response=Audit,
    ),
)
