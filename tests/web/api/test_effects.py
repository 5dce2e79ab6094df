"""API endpoints for effects: list, show and replay."""

from typing import Any

import httpx
import pytest

from oncehook import Fail, Inbox
from oncehook.testing import drain
from tests.support.dashboard import send
from tests.support.events import Rows

pytestmark = pytest.mark.anyio


@pytest.fixture
async def mailing(shop: Inbox) -> Inbox:
    """Two events, each with an email that failed."""

    @shop.effect
    async def mail(effect: Any, to: str) -> None:
        raise Fail("the mailbox is full")

    @shop.on("stripe", "customer.created")
    async def created(event: Any) -> None:
        await event.effect(f"mail:{event.id}", mail, to="jane@example.com")

    for event_id in ("evt_1", "evt_2"):
        await send(shop, event_id, "customer.created")
    await drain(shop)
    return shop


async def test_page_has_the_effects_a_cursor_and_counts_by_state(mailing: Inbox, program: httpx.AsyncClient) -> None:
    first = (await program.get("/api/effects", params={"limit": 1})).json()
    second = (await program.get("/api/effects", params={"limit": 1, "cursor": first["next"]})).json()
    assert [page["effects"][0]["key"] for page in (first, second)] == ["mail:evt_2", "mail:evt_1"]
    assert first["counts"] == {"waiting": 0, "performing": 0, "retrying": 0, "done": 0, "failed": 2}
    assert second["next"] is None and second["is_partial"] is False


async def test_one_effect_has_its_arguments_and_error(mailing: Inbox, program: httpx.AsyncClient) -> None:
    id = (await program.get("/api/effects")).json()["effects"][0]["id"]
    effect = (await program.get(f"/api/effects/{id}")).json()
    assert effect["args"] == {"to": "jane@example.com"} and "the mailbox is full" in effect["last_error"]
    assert (await program.get("/api/effects/99999")).status_code == 404


async def test_one_effect_is_replayed_once(mailing: Inbox, program: httpx.AsyncClient, rows: Rows) -> None:
    id = (await program.get("/api/effects")).json()["effects"][0]["id"]
    assert (await program.post(f"/api/effects/{id}/replay")).json() == {"replayed": 1, "left": 0}
    again = await program.post(f"/api/effects/{id}/replay")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "not_replayable")
    assert rows("SELECT actor FROM webhook_audit WHERE action = 'replay effects'") == [("token:admin",)]


async def test_bulk_replay_needs_the_count_of_a_dry_run(mailing: Inbox, program: httpx.AsyncClient, rows: Rows) -> None:
    dry = await program.post("/api/effects/replay", json={"source": "stripe", "dry_run": True})
    assert dry.json() == {"replayed": 2, "left": 0}
    for body in ({"source": "stripe"}, {"source": "stripe", "count": 1}):
        conflict = await program.post("/api/effects/replay", json=body)
        assert conflict.status_code == 409
        assert "now matches 2 effects. Send the request again with count 2." in conflict.json()["error"]["message"]
    assert rows("SELECT count(*) FROM webhook_effects WHERE replays > 0") == [(0,)]
    done = await program.post("/api/effects/replay", json={"source": "stripe", "count": 2})
    assert done.json() == {"replayed": 2, "left": 0}
