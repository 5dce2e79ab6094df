"""API endpoints for email: message status, suppressions and counts."""

import httpx
import pytest

from oncehook import Inbox
from tests.support.dashboard import both_databases
from tests.support.email_inbox import send_email_events
from tests.support.email_payloads import JANE, sendgrid

pytestmark = pytest.mark.anyio


@pytest.fixture
def shop(inbox: Inbox) -> Inbox:
    inbox.source("sendgrid", verify="none", email=True)
    return inbox


@both_databases
async def test_status_of_a_message_has_its_email_events(shop: Inbox, program: httpx.AsyncClient) -> None:
    await send_email_events(shop, sendgrid("delivered"), sendgrid("bounce", type="bounce", reason="550 unknown user"))
    (row,) = (await program.get("/api/email/suppressed", params={"address": JANE})).json()["suppressions"]
    message = (await program.get("/api/email/status", params={"message": row["message_id"]})).json()
    assert {event["type"] for event in message["events"]} == {"delivered", "bounced"}
    assert [status["status"] for status in message["statuses"]] == ["bounced"]
    assert (await program.get("/api/email/status", params={"message": "nothing"})).status_code == 404
    assert (await program.get("/api/email/status")).status_code == 422


async def test_suppression_is_added_and_removed_with_a_note(shop: Inbox, program: httpx.AsyncClient) -> None:
    row = (await program.post("/api/email/suppress", json={"address": "joe@example.com", "note": "n"})).json()
    assert (row["reason"], row["note"], row["actor"]) == ("manual", "n", "token:admin")
    assert (await program.post("/api/email/allow", json={"address": "joe@example.com"})).json()["since"] is None
    assert (await program.post("/api/email/suppress", json={"address": "joe"})).status_code == 422


async def test_suppressions_are_paged_and_looked_up_by_address(shop: Inbox, program: httpx.AsyncClient) -> None:
    for n in range(5):
        await shop.email.suppress(f"user{n}@example.com", actor="import")
    first = (await program.get("/api/email/suppressed", params={"limit": 3})).json()
    rest = (await program.get("/api/email/suppressed", params={"cursor": first["next"]})).json()
    assert len(first["suppressions"]) == 3 and len(rest["suppressions"]) == 2 and rest["next"] is None
    one = (await program.get("/api/email/suppressed", params={"address": "user3@EXAMPLE.com"})).json()
    assert [row["address"] for row in one["suppressions"]] == ["user3@example.com"]
    invalid = await program.get("/api/email/suppressed", params={"address": "a@b.c, d@e.f"})
    assert (invalid.status_code, invalid.json()["error"]["code"]) == (422, "bad_address")


@both_databases
async def test_counts_are_grouped_by_the_requested_dimensions(shop: Inbox, program: httpx.AsyncClient) -> None:
    now = int((await shop._runtime.store.operations.now()).timestamp())
    await send_email_events(
        shop, sendgrid("delivered", now, category=["news", "<i>"]), sendgrid("open", now + 1, category="news")
    )
    counts = (await program.get("/api/email/counts", params={"by": "tag,type", "since": "1d"})).json()["counts"]
    assert {(row["tag"], row["type"], row["events"]) for row in counts} == {
        ("news", "delivered", 1), ("<i>", "delivered", 1), ("news", "opened", 1),
    }  # fmt: skip
    unknown = await program.get("/api/email/counts", params={"by": "color"})
    assert unknown.status_code == 422 and "by must be a comma-separated list of" in unknown.text
