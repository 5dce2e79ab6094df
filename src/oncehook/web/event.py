"""One event, as the pages and the API find it, download its body and run its retry."""

from starlette.requests import Request
from starlette.responses import Response

from oncehook.model.receipt import Receipt
from oncehook.operations.replay import retry_now
from oncehook.store.rows import Selection
from oncehook.web.page import Context, Problem, number, principal

EFFECTS = 100


async def find(context: Context, request: Request) -> Receipt:
    named = number(request.path_params["receipt"])
    found = None if named is None else await context.store.receipts.get(named)
    if found is None:
        raise Problem(404, "not_found", "There is no such event: it was never here, or its window is over.")
    return found


async def raw(context: Context, request: Request) -> Response:
    """The exact bytes: to be saved, never to be shown by a browser as anything."""
    receipt = await find(context, request)
    payload = await context.store.receipts.payload(receipt.receipt)
    if payload is None:
        raise Problem(404, "not_found", "The payload of this event was pruned or erased.")
    headers = {"content-disposition": f'attachment; filename="event-{receipt.receipt}.txt"'}
    return Response(payload.body, headers=headers, media_type="text/plain; charset=utf-8")


async def run_now(context: Context, request: Request, receipt: Receipt) -> None:
    """Make its waiting retry due now, or say why not."""
    done = await retry_now(context.store, Selection(receipts=(receipt.receipt,)), actor=principal(request).name)
    if not done.count:
        raise Problem(409, "not_retrying", f"It has no retry to run now: {next(iter(done.left), 'changed meanwhile')}.")
    context.runtime.wake_worker()
