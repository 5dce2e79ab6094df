"""`oncehook retry`, and the same action on the dashboard and in the API."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oncehook import Inbox, RetryLater
from oncehook.model.states import State
from tests.support.command_line import Run
from tests.support.dashboard import dashboard_of
from tests.support.events import Rows, make_claim
from tests.support.serve import write_config
from tests.support.waiting import eventually
from tests.support.work import claim_and_settle

WAITING: dict[str, Any] = {"status": State.RETRYING, "outcome": "retrying", "after": 3600.0, "error": "KeyError: 'x'"}
DUE = "SELECT event_id FROM webhook_receipts WHERE status = 'retrying' AND next_attempt_at <= {now} ORDER BY id"


@pytest.fixture
def due(rows: Rows, database: str) -> Callable[[], list[str]]:
    """The events whose retry is due."""
    now = "now()" if database.startswith("postgresql") else "strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')"
    return lambda: [event_id for (event_id,) in rows(DUE.format(now=now))]


@pytest.fixture
def waiting(in_folder: Path, database: str, make_inbox: Callable[..., Inbox]) -> list[int]:
    """Three retries that wait for an hour, of two sources, and a dead letter."""
    write_config(in_folder, database)
    claims = [make_claim("evt_1"), make_claim("evt_2"), make_claim("evt_3", source="live")]
    receipts = claim_and_settle(make_inbox, *claims, **WAITING)
    return receipts + claim_and_settle(make_inbox, make_claim("evt_4"), status=State.FAILED, outcome="failed")


def test_a_named_retry_is_due_now_and_recorded(
    run: Run, waiting: list[int], rows: Rows, due: Callable[[], list[str]]
) -> None:
    ran = run("retry", "evt_1", "--actor", "ann")
    assert (ran.code, ran.out, ran.error) == (0, "1 retry is due now\n", "")
    assert due() == ["evt_1"]
    ((actor, action, detail),) = rows("SELECT actor, action, detail FROM webhook_audit")
    assert (actor, action, json.loads(detail)["receipts"]) == ("ann", "retry", waiting[:1])


def test_a_filter_selects_retries_and_needs_a_confirmation(
    run: Run, waiting: list[int], due: Callable[[], list[str]]
) -> None:
    ran = run("retry", "--source", "stripe")
    assert ran.code == 2 and "would run 2 retries now: confirm with --yes" in ran.error and due() == []
    assert run("retry", "--source", "stripe", "--yes", "--json").lines == [{"matched": 2, "retried": 2, "left": {}}]
    assert due() == ["evt_1", "evt_2"]
    assert run("retry", "--all", "--yes").code == 0 and due() == ["evt_1", "evt_2", "evt_3"]


def test_a_finished_event_is_skipped_with_a_hint(run: Run, waiting: list[int]) -> None:
    ran = run("retry", str(waiting[3]))
    assert ran.code == 1 and "skipped: 1 (failed): to run a finished event again, use `oncehook replay`" in ran.error
    replayed = run("replay", str(waiting[0]))
    assert (
        replayed.code == 1
        and "skipped: 1 (retrying): to run a waiting retry now, use `oncehook retry`" in replayed.error
    )


def test_bad_usage_is_reported_with_exit_code_2(run: Run, waiting: list[int]) -> None:
    assert run("retry").code == 2
    assert run("retry", "--all", "--source", "stripe").code == 2
    assert run("retry", "evt_1", "--all").code == 2
    assert run("retry", "evt_9").code == 1
    assert run("retry", "--source", "unknown", "--yes").code == 1


def test_an_inline_event_is_skipped_because_its_provider_retries(
    run: Run, waiting: list[int], rows: Rows, due: Callable[[], list[str]]
) -> None:
    rows("UPDATE webhook_receipts SET is_inline = true WHERE event_id = 'evt_1'")
    ran = run("retry", "evt_1")
    assert ran.code == 1 and "inline, or already running" in ran.error and due() == []


@pytest.mark.anyio
async def test_the_dashboard_and_the_api_run_a_waiting_retry_now(make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox(worker=True, poll=3600.0)
    attempts: list[str] = []
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "*")
    async def fails_twice(event: Any) -> None:
        attempts.append(event.id)
        if len(attempts) < 3:
            raise RetryLater("the service is down", after=3600)

    def is_retrying() -> bool:
        return rows("SELECT status FROM webhook_receipts") == [("retrying",)]

    async with dashboard_of(inbox) as site, site.signed_in() as browser, site.program("replayer") as program:
        (claimed,) = await inbox._runtime.store.claims.insert([make_claim("evt_1")])
        assert inbox._runtime.worker is not None
        inbox._runtime.worker.wake()
        await eventually(is_retrying)
        page = f"/events/{claimed.receipt}"
        assert "Retry now" in (await browser.get(page)).text
        assert (await browser.submit(f"{page}/retry")).headers["location"] == f"{page}?done=retried"
        await eventually(lambda: len(attempts) == 2)
        await eventually(is_retrying)
        answer = await program.post(f"/api/events/{claimed.receipt}/retry")
        assert (answer.status_code, answer.json()) == (200, {"receipt": claimed.receipt, "retried": True})
        await eventually(lambda: rows("SELECT status FROM webhook_receipts") == [("processed",)])
        refused = await program.post(f"/api/events/{claimed.receipt}/retry")
        assert refused.status_code == 409 and refused.json()["error"]["code"] == "not_retrying"
        assert "Retry now" not in (await browser.get(page)).text
        async with site.program("reader") as reader:
            assert (await reader.post(f"/api/events/{claimed.receipt}/retry")).status_code == 403
    assert [actor for (actor,) in rows("SELECT actor FROM webhook_audit WHERE action = 'retry' ORDER BY id")] == [
        "user:otto",
        "token:replayer",
    ]
