"""Finds one event, returns its raw payload and runs its retry, for the dashboard and the API."""

from starlette.requests import Request
from starlette.responses import Response

from oncehook.model.receipt import Receipt
from oncehook.operations.payloads import read_payload
from oncehook.operations.replay import retry_now
from oncehook.store.rows import Selection
from oncehook.store.store import Store
from oncehook.web.page import Context, Problem, parse_id, principal

MAX_EFFECTS = 100
"""How many effects of one event are shown."""

CHANGED = "its status changed during the request"


async def find_event(context: Context, request: Request) -> Receipt:
    id = parse_id(request.path_params["receipt"])
    receipt = None if id is None else await context.store.receipts.get(id)
    if receipt is None:
        raise Problem(404, "not_found", "Event not found. It does not exist, or its receipt was pruned.")
    return receipt


async def find_event_to_show(context: Context, request: Request) -> tuple[Receipt, Store]:
    """Return an event, and the store to read the rest of it from: a replica may not have the event yet."""
    id = parse_id(request.path_params["receipt"])
    receipt = None if id is None else await context.reads.receipts.get(id)
    if receipt is None:
        return await find_event(context, request), context.store
    return receipt, context.reads


async def download_payload(context: Context, request: Request) -> Response:
    """Return the exact bytes as a download, which no browser renders."""
    receipt = await find_event(context, request)
    payload, unreadable = await read_payload(context.store, receipt.receipt)
    if unreadable is not None:
        raise Problem(409, "key_missing", unreadable)
    if payload is None:
        raise Problem(404, "not_found", "The payload of this event was pruned or erased.")
    headers = {"content-disposition": f'attachment; filename="event-{receipt.receipt}.txt"'}
    return Response(payload.body, headers=headers, media_type="text/plain; charset=utf-8")


async def run_retry_now(context: Context, request: Request, receipt: Receipt) -> None:
    """Make the event's next attempt due now. Raises Problem if the event is not waiting for a retry."""
    result = await retry_now(context.store, Selection(receipts=(receipt.receipt,)), actor=principal(request).name)
    if not result.count:
        reason = next(iter(result.left), CHANGED)
        raise Problem(409, "not_retrying", f"The event is not waiting for a retry: {reason}.")
    context.runtime.wake_worker()
