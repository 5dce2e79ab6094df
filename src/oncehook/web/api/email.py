"""API endpoints for email: message status, suppressions and counts."""

from starlette.requests import Request
from starlette.responses import Response

from oncehook.email import DIMENSIONS
from oncehook.web.api.endpoint import Endpoint, json_response, read_body, read_query
from oncehook.web.api.schemas.email import (
    EmailCounts,
    EmailCountsQuery,
    EmailMessage,
    EmailMessageQuery,
    SuppressedQuery,
    Suppression,
    SuppressionChange,
    Suppressions,
)
from oncehook.web.email import change_suppression, list_suppressions
from oncehook.web.listing import read_time
from oncehook.web.page import Context, Problem, check_texts


async def status(context: Context, request: Request) -> Response:
    message = read_query(request, EmailMessageQuery).message
    check_texts({"message": message})
    statuses = await context.runtime.email.status(message)
    if not statuses:
        raise Problem(404, "not_found", "No email events for this message.")
    return json_response({"statuses": statuses, "events": await context.runtime.email.events(message)})


async def suppressed(context: Context, request: Request) -> Response:
    query = read_query(request, SuppressedQuery)
    if query.address:
        check_texts({"address": query.address})
        try:
            context.runtime.email.normalise_address(query.address)
        except ValueError:
            raise Problem(422, "bad_address", "This is not a valid email address.") from None
        row = await context.runtime.email.suppression(query.address)
        return json_response({"suppressions": [row] if row else [], "next": None})
    rows, more = await list_suppressions(context, query.search, query.cursor, query.limit)
    return json_response({"suppressions": rows, "next": more})


async def suppress(context: Context, request: Request) -> Response:
    body = read_body(request, SuppressionChange)
    return json_response(await change_suppression(context, request, body.address, body.note, remove=False))


async def allow(context: Context, request: Request) -> Response:
    body = read_body(request, SuppressionChange)
    return json_response(await change_suppression(context, request, body.address, body.note, remove=True))


async def counts(context: Context, request: Request) -> Response:
    query = read_query(request, EmailCountsQuery)
    check_texts({"source": query.source})
    dimensions = [name for name in query.by.split(",") if name]
    if any(name not in DIMENSIONS for name in dimensions):
        raise Problem(422, "bad_query", f"by must be a comma-separated list of {', '.join(DIMENSIONS)}.")
    since, until = read_time(query.since, "since"), read_time(query.until, "until")
    rows = await context.runtime.email.counts(dimensions, since=since, until=until, source=query.source or None)
    return json_response({"counts": rows})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/email/status",
        status,
        summary="Returns the status of a message for each recipient.",
        query=EmailMessageQuery,
        response=EmailMessage,
    ),
    Endpoint(
        "GET",
        "/api/email/suppressed",
        suppressed,
        summary="Lists suppressed addresses, or looks up one address.",
        query=SuppressedQuery,
        response=Suppressions,
    ),
    Endpoint(
        "POST",
        "/api/email/suppress",
        suppress,
        scope="admin",
        summary="Suppresses an address manually.",
        body=SuppressionChange,
        response=Suppression,
    ),
    Endpoint(
        "POST",
        "/api/email/allow",
        allow,
        scope="admin",
        summary="Removes a suppression manually.",
        body=SuppressionChange,
        response=Suppression,
    ),
    Endpoint(
        "GET",
        "/api/email/counts",
        counts,
        summary="Counts email events by day, source, type, tag or domain.",
        query=EmailCountsQuery,
        response=EmailCounts,
    ),
)
