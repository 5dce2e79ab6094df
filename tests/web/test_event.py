"""One event: finding it, downloading its payload, and running its retry now."""

import pytest

from oncehook import Inbox, Retry
from oncehook.operations.forget import forget
from oncehook.testing import drain
from oncehook.web.event import download_payload, find_event, run_retry_now
from oncehook.web.page import Context, Problem
from tests.support.dashboard import both_databases, make_request, send

pytestmark = pytest.mark.anyio


async def test_event_is_found_by_its_receipt_or_reported_as_not_found(shop: Inbox, context: Context) -> None:
    receipt = await send(shop, "evt_1")
    assert (await find_event(context, make_request(receipt=str(receipt)))).event_id == "evt_1"
    for number in ("999999", "abc", ""):
        with pytest.raises(Problem, match="Event not found"):
            await find_event(context, make_request(receipt=number))


async def test_payload_is_a_download_that_no_browser_renders(shop: Inbox, context: Context) -> None:
    receipt = await send(shop, "evt_1", note="<script>alert(1)</script>")
    response = await download_payload(context, make_request(receipt=str(receipt)))
    assert b"<script>" in bytes(response.body)
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["content-disposition"] == f'attachment; filename="event-{receipt}.txt"'


async def test_pruned_payload_cannot_be_downloaded(shop: Inbox, context: Context) -> None:
    receipt = await send(shop, "evt_1")
    await forget(context.store, [receipt], actor="me")
    with pytest.raises(Problem, match="The payload of this event was pruned or erased"):
        await download_payload(context, make_request(receipt=str(receipt)))


@both_databases
async def test_retry_is_due_now_and_an_event_without_a_retry_is_a_problem(inbox: Inbox, context: Context) -> None:
    @inbox.on("stripe", "plan.created", retry=Retry(attempts=3, first=3600))
    async def unlucky(event: object) -> None:
        raise OSError("no route to host")

    waiting, received = await send(inbox, "evt_1", "plan.created"), await send(inbox, "evt_2")
    await drain(inbox)
    receipt = await find_event(context, make_request(receipt=str(waiting)))
    assert receipt.status == "retrying"
    await run_retry_now(context, make_request(), receipt)
    await drain(inbox)
    assert (await find_event(context, make_request(receipt=str(waiting)))).attempts == 2
    other = await find_event(context, make_request(receipt=str(received)))
    with pytest.raises(Problem, match="The event is not waiting for a retry: processed") as error:
        await run_retry_now(context, make_request(), other)
    assert (error.value.status, error.value.code) == (409, "not_retrying")
