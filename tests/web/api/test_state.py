"""API endpoints for the overview, dead letters, sources, alerts and the audit log."""

from collections.abc import Callable

import httpx
import pytest

from oncehook import Inbox
from oncehook.testing import deliver, drain
from tests.support.alerts import evaluate_after, make_alert_inbox
from tests.support.dashboard import both_databases, dashboard_of, send

pytestmark = pytest.mark.anyio


async def test_overview_has_one_count_per_bucket(shop: Inbox, program: httpx.AsyncClient) -> None:
    await send(shop, "evt_1")
    await send(shop, "evt_2", "charge.failed")
    overview = (await program.get("/api/overview", params={"range": "15m"})).json()
    assert (overview["range"], overview["bucket_seconds"]) == ("15m", 60)
    for series in ("received", "duplicate", "rejected", "failed"):
        assert len(overview[series]) == len(overview["buckets"])
    assert sum(overview["received"]) == 2 and overview["waiting"] == 2 and "is_empty" not in overview
    of_github = (await program.get("/api/overview", params={"source": "github"})).json()
    assert sum(of_github["received"]) == 0
    assert (await program.get("/api/overview", params={"range": "2h"})).status_code == 422


@both_databases
async def test_dead_letters_are_grouped_by_error(shop: Inbox, program: httpx.AsyncClient) -> None:
    for n in range(3):
        await send(shop, f"evt_{n}", "charge.failed")
    await drain(shop)
    dead = (await program.get("/api/dead")).json()
    assert dead["total"] == 3
    (group,) = dead["groups"]
    assert (group["source"], group["receipts"]) == ("stripe", 3) and "declined" in group["last_error"]


async def test_source_has_its_url_its_backlog_and_its_pause(shop: Inbox, program: httpx.AsyncClient) -> None:
    await send(shop, "evt_1")
    body = {"reason": "maintenance", "seconds": 3600}
    paused = await program.post("/api/sources/stripe/pause", json=body)
    assert paused.json() == {"source": "stripe", "paused": True}
    sources = {source["source"]: source for source in (await program.get("/api/sources")).json()["sources"]}
    stripe = sources["stripe"]
    assert stripe["address"] == f"{str(program.base_url).rstrip('/')}/webhooks/stripe" and stripe["waiting"] == 1
    assert (stripe["paused"]["actor"], stripe["paused"]["reason"]) == ("token:admin", "maintenance")
    assert stripe["paused"]["until"] is not None and sources["github"]["paused"] is None
    assert (await program.get("/api/overview")).json()["paused"] == ["stripe"]
    resumed = await program.post("/api/sources/stripe/resume")
    assert resumed.json() == {"source": "stripe", "paused": False}
    assert (await program.post("/api/sources/unknown/pause")).status_code == 404


async def test_alerts_have_the_incidents_their_notifications_and_every_rule(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_alert_inbox(make_inbox, targets={"page": {"command": ["true"]}})
    async with dashboard_of(inbox) as site, site.program("reader") as program:
        quiet = (await program.get("/api/alerts")).json()
        assert quiet["incidents"] == []
        assert {"dead_letters", "lag", "paused", "silent"} <= {rule["rule"] for rule in quiet["rules"]}
        await deliver(inbox, "stripe", b'{"type": "invoice.paid"}')  # an event without an id becomes a dead letter
        await evaluate_after(inbox)
        await inbox._runtime.alerts.send_due()
        alerts = (await program.get("/api/alerts")).json()
        (incident,) = alerts["incidents"]
        assert (incident["rule"], incident["source"], incident["page"]) == ("dead_letters", "stripe", "/dead")
        assert incident["alerts"][0] | {"told_at": None} == {
            "target": "page", "word": "opened", "status": "told", "attempts": 1, "told_at": None, "last_error": None,
        }  # fmt: skip
        assert {rule["rule"] for rule in alerts["rules"] if rule["is_firing"]} == {"dead_letters"}


async def test_audit_log_is_paged_by_cursor(shop: Inbox, program: httpx.AsyncClient) -> None:
    for n in range(5):
        await shop._runtime.store.operations.audit("me", "test", {"n": n})
    first = (await program.get("/api/audit", params={"limit": 3})).json()
    second = (await program.get("/api/audit", params={"limit": 3, "cursor": first["next"]})).json()
    assert [row["detail"]["n"] for row in first["rows"] + second["rows"]] == [4, 3, 2, 1, 0] and second["next"] is None
