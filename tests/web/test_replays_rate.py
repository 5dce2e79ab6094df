"""A replay at a rate and a large replay, as the dashboard, the API and the audit log show them."""

from collections.abc import Callable

import pytest

from oncehook import Inbox
from oncehook.operations.replay import Outcomes, replay, run_outcomes
from oncehook.store.rows import Selection
from tests.support.dashboard import dashboard_of
from tests.support.events import Rows, make_claim
from tests.support.waiting import eventually

RECEIVED = "SELECT count(*) FROM webhook_receipts WHERE status = 'received'"


@pytest.mark.anyio
async def test_large_replay_is_one_row_in_the_audit_log(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with dashboard_of(inbox) as site, site.program("admin") as program, site.signed_in() as browser:
        receipts = await inbox._runtime.store.claims.insert([make_claim(f"evt_{n:05d}") for n in range(1200)])
        rows("UPDATE webhook_receipts SET status = 'failed'")
        done = await replay(inbox._runtime.store, Selection(), actor="ann")
        assert done.count == 1200 and done.last == receipts[-1].receipt and done.run is not None
        by_ann = [row for row in (await program.get("/api/audit")).json()["rows"] if row["actor"] == "ann"]
        assert [(row["action"], row["detail"]["count"], row["detail"]["state"]) for row in by_ann] == [
            ("replay", 1200, "done")
        ]
        audit = (await browser.get("/audit")).text
        assert audit.count(">ann<") == 1 and f'href="/replays/{done.run}"' in audit
        rows(f"UPDATE webhook_receipts SET status = 'processed' WHERE id <= {receipts[699].receipt}")
        rows(f"UPDATE webhook_receipts SET status = 'failed' WHERE id = {receipts[800].receipt}")
        assert await run_outcomes(inbox._runtime.store, done.run) == Outcomes(handled=700, failed=1, waiting=499)
        state = (await program.get(f"/api/replays/{done.run}")).json()
        assert (state["handled"], state["failed"], state["waiting"], state["replayed"]) == (700, 1, 499, 1200)
        page = (await browser.get(f"/replays/{done.run}")).text
        assert "<strong>700</strong> handled" in page and "data-poll" in page
        assert (
            len(await inbox._runtime.store.operations.replays(receipts[0].receipt)) == 1
        )  # batches are still found by receipt


@pytest.mark.anyio
async def test_dashboard_and_api_replay_at_a_rate(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with dashboard_of(inbox) as site, site.program("admin") as program, site.signed_in() as browser:
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{n:05d}") for n in range(8)])
        rows("UPDATE webhook_receipts SET status = 'failed', failed_at = received_at")

        async def moved() -> int:
            return int(rows(RECEIVED)[0][0])

        body = {"status": "failed", "count": 8, "rate": 0.01}  # the second batch would wait for minutes
        run = (await program.post("/api/replays", json=body)).json()["run"]
        await eventually(moved, "the first event is replayed")
        state = (await program.get(f"/api/replays/{run}")).json()
        assert (state["state"], await moved(), state["waiting"]) == ("running", 1, 1)
        assert "per second" in (await browser.get("/replay?status=failed")).text
        bad = await browser.submit("/replay", {"status": "failed", "count": "7", "rate": "fast"})
        assert bad.status_code == 422
        assert (await browser.submit("/replay", {"status": "failed", "count": "7", "rate": "0.01"})).status_code == 303
        await eventually(lambda: rows(RECEIVED) == [(2,)], "the second replay moves an event too")
