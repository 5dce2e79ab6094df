"""The JSON API: the same as the pages show and do, described by a document that is made of the endpoints themselves."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from oncehook import Fail, Inbox
from oncehook.model.receipt import Filter, Receipt
from oncehook.testing import deliver, post
from oncehook.web.api import ENDPOINTS
from oncehook.web.api.schemas.events import Event
from tests.support.dashboard import Site, dashboard_of
from tests.support.email_payloads import postmark_bounce
from tests.support.events import Rows, stripe_body
from tests.web.pages.test_pages import send, worked_off

pytestmark = pytest.mark.anyio
sqlite = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


NEEDED = {"/api/email/status": {"message": "<m1@example.com>"}}


@pytest.fixture
async def site(inbox: Inbox) -> AsyncIterator[Site]:
    @inbox.effect
    async def tell(effect: Any, who: str) -> None:
        raise Fail("nobody there")

    @inbox.on("stripe", "charge.failed")
    async def declined(event: Any) -> None:
        raise Fail("declined")

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Any) -> None:
        if event.id == "evt_tell":
            await event.effect("tell:1", tell, who="jane")

    inbox.source("postmark", verify="none", email=True)

    async with dashboard_of(inbox) as site:
        yield site


@pytest.fixture
async def program(site: Site) -> AsyncIterator[httpx.AsyncClient]:
    async with site.program("admin") as program:
        yield program


async def test_every_answer_is_as_the_document_says(inbox: Inbox, site: Site, program: httpx.AsyncClient) -> None:
    receipt = await send(inbox, "evt_1", "charge.failed", amount=1.10, big=12345678901234567890123)
    await send(inbox, "evt_1", "charge.failed", amount=2)
    await send(inbox, "evt_tell")
    bounce = json.dumps(postmark_bounce("HardBounce", MessageID="m1@example.com")).encode()
    await post(inbox, "postmark", bounce, {"content-type": "application/json"})
    await inbox._runtime.reception.duplicates.drain()
    await worked_off(inbox)
    await deliver(inbox, "stripe", stripe_body("x"), secret="whsec_wrong")
    started = (await program.post("/api/replays", json={"status": "failed", "count": 1})).json()["run"]
    async with asyncio.timeout(20):
        while (await program.get(f"/api/replays/{started}")).json()["state"] == "running":
            await asyncio.sleep(0.02)
    await worked_off(inbox)
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET" and endpoint.response is not None:
            path = endpoint.path.replace("{receipt}", str(receipt)).replace("{run}", started).replace("{effect}", "1")
            answer = await program.get(path, params=NEEDED.get(path))
            assert answer.status_code == 200, path
            msgspec.json.decode(answer.content, type=endpoint.response)
            if endpoint.query is not None:
                assert (await program.get(path, params={"nothing": "1"})).status_code == 422
    whole = await program.get(f"/api/events/{receipt}")
    assert "12345678901234567890123" in whole.text and "1.1" in whole.text
    assert whole.json()["deliveries"][0]["same_body"] is False and len(whole.json()["attempts_history"]) == 2
    assert whole.json()["replays_history"][0]["actor"] == "token:admin"


async def test_the_event_in_json_is_the_one_of_the_command_line(inbox: Inbox, program: httpx.AsyncClient) -> None:
    await send(inbox, "evt_1")
    (event,) = (await program.get("/api/events")).json()["events"]
    assert tuple(event) == Event.__struct_fields__
    assert set(Receipt.__struct_fields__) - set(event) == {"unhandled_at"}
    (receipt,) = await inbox._runtime.store.receipts.find(Filter(), limit=1)
    assert event == receipt.as_json()


async def test_cursors_meet_every_event_once(inbox: Inbox, program: httpx.AsyncClient) -> None:
    sent = [await send(inbox, f"evt_{n}") for n in range(23)]
    met, cursor = [], ""
    while cursor is not None:
        page = (await program.get("/api/events", params={"limit": 5, "source": "stripe", "cursor": cursor})).json()
        met += [event["receipt"] for event in page["events"]]
        cursor = page["next"]
    assert met == sent[::-1]


@pytest.mark.parametrize("pattern", ["[]", "[z-a]", r"[a-\d]", "[", "[^", "(", "\\", "%", "*" * 1999, "*a" * 999])
async def test_an_odd_type_pattern_is_no_trouble_of_the_database(
    inbox: Inbox, program: httpx.AsyncClient, pattern: str
) -> None:
    for number in range(20):
        await send(inbox, f"evt_{number}", "a" * 250)
    for path in ("/api/events", "/events"):
        answer = await program.get(path, params={"type": pattern})
        assert answer.status_code in (200, 422), answer.text


async def test_the_audit_pages_by_cursor(inbox: Inbox, program: httpx.AsyncClient) -> None:
    for n in range(5):
        await inbox._runtime.store.operations.audit("me", "test", {"n": n})
    first = (await program.get("/api/audit", params={"limit": 3})).json()
    second = (await program.get("/api/audit", params={"limit": 3, "cursor": first["next"]})).json()
    assert [row["detail"]["n"] for row in first["rows"] + second["rows"]] == [4, 3, 2, 1, 0] and second["next"] is None


async def test_replaying_rehearsing_and_erasing_one(inbox: Inbox, program: httpx.AsyncClient, rows: Rows) -> None:
    receipt = await send(inbox, "evt_1", "charge.failed")
    early = await program.post(f"/api/events/{receipt}/replay")
    assert early.status_code == 409 and early.json()["error"]["code"] == "not_replayable"
    await worked_off(inbox)
    told = (await program.post(f"/api/events/{receipt}/rehearse")).json()
    assert told["error"] == "Fail: declined" and told["statements"] == []
    assert (await program.post(f"/api/events/{receipt}/replay")).json()["replayed"] == 1
    await worked_off(inbox)
    assert (await program.delete(f"/api/events/{receipt}/payload")).json() == {"erased": 1}
    assert (await program.get(f"/api/events/{receipt}")).json()["payload"] is None
    done = [row[0] for row in rows("SELECT action FROM webhook_audit WHERE actor = 'token:admin' ORDER BY id")]
    assert done == ["rehearse", "replay", "forget"]


async def test_word_that_is_not_allowed_is_answered_with_those_that_are(
    inbox: Inbox, program: httpx.AsyncClient
) -> None:
    body = await program.post("/api/replays", json={"status": "procesed"})
    message = body.json()["error"]["message"]
    assert (
        body.status_code == 422
        and "status is 'procesed': did you mean processed? the allowed values are failed, " in message
    )
    query = await program.get("/api/events?status=nope")
    assert query.status_code == 422 and "the allowed values are failed, ignored, " in query.json()["error"]["message"]


async def test_a_dry_run_counts_and_another_count_is_refused(inbox: Inbox, program: httpx.AsyncClient) -> None:
    for n in range(3):
        await send(inbox, f"evt_{n}", "charge.failed")
    await worked_off(inbox)
    dry = (await program.post("/api/replays", json={"status": "failed", "dry_run": True})).json()
    assert dry == {"matched": 3, "replayed": 3, "left": {}, "run": None}
    assert (await program.post("/api/replays", json={"status": "failed", "count": 2})).status_code == 409
    without = await program.post("/api/replays", json={"status": "failed"})
    assert (without.status_code, without.json()["error"]["code"]) == (409, "count_missing")
    assert "matches 3 events" in without.json()["error"]["message"]
    one = await program.post("/api/replays", json={"status": "failed", "search": "evt_1"})
    assert one.status_code == 202
    assert (await program.post("/api/replays", json={})).status_code == 422


@sqlite
@pytest.mark.parametrize(
    ("content", "media_type", "status"),
    [
        (b"{", "application/json", 400),
        (b"[]", "application/json", 422),
        (b'{"status": 5}', "application/json", 422),
        (b'{"nothing": 5}', "application/json", 422),
        (b'{"since": "never"}', "application/json", 422),
        (b"status=failed", "application/x-www-form-urlencoded", 415),
        (b'{"status": "failed"}', "text/plain", 415),
        (b" " * 70_000, "application/json", 413),
        (b'{"type": "\\ud800"}', "application/json", 400),
        (b"[" * 50_000, "application/json", 422),
    ],
)
async def test_a_body_that_is_not_as_expected_is_a_problem_in_one_shape(
    program: httpx.AsyncClient, content: bytes, media_type: str, status: int
) -> None:
    answer = await program.post("/api/replays", content=content, headers={"content-type": media_type})
    assert answer.status_code == status
    assert set(answer.json()) == {"error"} and set(answer.json()["error"]) == {"code", "message"}


@sqlite
async def test_the_document_has_every_endpoint_and_its_scope(program: httpx.AsyncClient) -> None:
    document = (await program.get("/api/openapi.json")).json()
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(e.method, e.path) for e in ENDPOINTS if e.path != "/api/openapi.json"}
    text = json.dumps(document)
    references = set(re.findall(r'"#/components/schemas/(\w+)"', text))
    assert references <= set(document["components"]["schemas"])
    replay = document["paths"]["/api/replays"]["post"]
    assert "replay" in replay["description"] and replay["requestBody"]["required"]
