"""Email in JSON: the same as on the command line."""

from starlette.requests import Request
from starlette.responses import Response

from oncehook.email import DIMENSIONS
from oncehook.web.api.endpoint import Endpoint, answer, read_body, read_query
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
from oncehook.web.email import change, look
from oncehook.web.listing import read_moment
from oncehook.web.page import Context, Problem, check_texts


async def status(context: Context, request: Request) -> Response:
    message = read_query(request, EmailMessageQuery).message
    check_texts({"message": message})
    statuses = await context.runtime.email.status(message)
    if not statuses:
        raise Problem(404, "not_found", "No email event of this message is known.")
    return answer({"statuses": statuses, "events": await context.runtime.email.events(message)})


async def suppressed(context: Context, request: Request) -> Response:
    query = read_query(request, SuppressedQuery)
    if query.address:
        check_texts({"address": query.address})
        try:
            context.runtime.email.named(query.address)
        except ValueError:
            raise Problem(422, "bad_address", "This is not an email address.") from None
        found = await context.runtime.email.suppression(query.address)
        return answer({"suppressions": [found] if found else [], "next": None})
    rows, more = await look(context, query.search, query.cursor, query.limit)
    return answer({"suppressions": rows, "next": more})


async def suppress(context: Context, request: Request) -> Response:
    body = read_body(request, SuppressionChange)
    return answer(await change(context, request, body.address, body.note, remove=False))


async def allow(context: Context, request: Request) -> Response:
    body = read_body(request, SuppressionChange)
    return answer(await change(context, request, body.address, body.note, remove=True))


async def counts(context: Context, request: Request) -> Response:
    query = read_query(request, EmailCountsQuery)
    check_texts({"source": query.source})
    sides = [side for side in query.by.split(",") if side]
    if any(side not in DIMENSIONS for side in sides):
        raise Problem(422, "bad_query", f"by is not made of {', '.join(DIMENSIONS)}.")
    since, until = read_moment(query.since, "since"), read_moment(query.until, "until")
    rows = await context.runtime.email.counts(sides, since=since, until=until, source=query.source or None)
    return answer({"counts": rows})


ENDPOINTS = (
    Endpoint(
        "GET",
        "/api/email/status",
        status,
        summary="What became of a message, for each recipient.",
        query=EmailMessageQuery,
        answer=EmailMessage,
    ),
    Endpoint(
        "GET",
        "/api/email/suppressed",
        suppressed,
        summary="Who must not be sent to; or one address, if it is.",
        query=SuppressedQuery,
        answer=Suppressions,
    ),
    Endpoint(
        "POST",
        "/api/email/suppress",
        suppress,
        scope="admin",
        summary="Suppress an address by hand.",
        body=SuppressionChange,
        answer=Suppression,
    ),
    Endpoint(
        "POST",
        "/api/email/allow",
        allow,
        scope="admin",
        summary="Lift a suppression by hand.",
        body=SuppressionChange,
        answer=Suppression,
    ),
    Endpoint(
        "GET",
        "/api/email/counts",
        counts,
        summary="How many events, by day, source, type, tag or domain.",
        query=EmailCountsQuery,
        answer=EmailCounts,
    ),
)
