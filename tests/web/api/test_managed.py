"""API endpoints of managed sources and tenants: each change, the refusals, and who may change them."""

from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from oncehook import Inbox
from tests.support.dashboard import Site, both_databases, dashboard_of
from tests.support.events import Rows
from tests.support.managed import FIRST, KEY, SECOND, delivery_status

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_inbox(keys=[KEY])
    inbox.source("stripe", tenants=True)
    async with inbox.lifespan():
        yield inbox


@pytest.fixture
async def site(inbox: Inbox) -> AsyncIterator[Site]:
    async with dashboard_of(inbox) as site:
        yield site


NEW = {"name": "acme", "provider": "stripe", "secrets": [FIRST], "settings": {"types": ["invoice.*"]}}


@both_databases
async def test_source_is_added_rotated_and_removed(inbox: Inbox, program: httpx.AsyncClient, rows: Rows) -> None:
    added = await program.post("/api/sources", json=NEW)
    assert (added.status_code, added.json()) == (201, {"source": "acme"})
    assert await delivery_status(inbox, "acme", FIRST) == 202, "the process that changed it uses it at once"
    listed = {row["source"]: row for row in (await program.get("/api/sources")).json()["sources"]}
    assert listed["acme"]["is_managed"] and listed["acme"]["types"] == ["invoice.*"] and not listed["acme"]["tenants"]
    assert not listed["stripe"]["is_managed"] and listed["stripe"]["tenants"] == "managed"
    rotated = await program.post("/api/sources/acme/rotate", json={"secret": SECOND, "grace_seconds": 60})
    assert rotated.json() == {"source": "acme"}
    assert [await delivery_status(inbox, "acme", secret, secret) for secret in (FIRST, SECOND)] == [202, 202]
    assert (await program.post("/api/sources/acme/rotate", json={"finish": True})).status_code == 200
    assert await delivery_status(inbox, "acme", FIRST) == 401
    assert (await program.delete("/api/sources/acme")).json() == {"source": "acme"}
    assert await delivery_status(inbox, "acme", SECOND) == 404
    audited = rows("SELECT actor, action, detail FROM webhook_audit WHERE action LIKE '%source' ORDER BY id")
    assert {actor for actor, *_ in audited} == {"token:admin"} and len(audited) == 3 and "whsec" not in str(audited)


@both_databases
async def test_tenant_is_added_listed_rotated_and_removed(inbox: Inbox, program: httpx.AsyncClient) -> None:
    path = "/api/sources/stripe/tenants"
    for name in ("acme", "globex", "ace"):
        added = await program.post(path, json={"tenant": name, "secrets": [FIRST]})
        assert (added.status_code, added.json()) == (201, {"source": "stripe", "tenant": name})
    assert await delivery_status(inbox, "stripe/acme", FIRST) == 202
    first = (await program.get(path, params={"search": "ac", "limit": 1})).json()
    assert [row["tenant"] for row in first["tenants"]] == ["ace"] and first["next"] == "ace"
    second = (await program.get(path, params={"search": "ac", "limit": 1, "cursor": first["next"]})).json()
    assert [row["tenant"] for row in second["tenants"]] == ["acme"] and second["next"] is None
    assert second["tenants"][0]["address"].endswith("/webhooks/stripe/acme")
    assert (await program.post(f"{path}/acme/rotate", json={"secret": SECOND})).status_code == 200
    (acme,) = (await program.get(path, params={"search": "acme"})).json()["tenants"]
    assert [secret["ends_at"] is None for secret in acme["secrets"]] == [True, False] and "whsec" not in str(acme)
    assert (await program.post(f"{path}/acme/rotate", json={"finish": True})).json() == {
        "source": "stripe",
        "tenant": "acme",
    }
    assert await delivery_status(inbox, "stripe/acme", FIRST) == 401
    assert (await program.delete(f"{path}/acme")).status_code == 200
    assert await delivery_status(inbox, "stripe/acme", SECOND) == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "message"),
    [
        ("", {**NEW, "provider": "strpe"}, 422, "bad_source", "did you mean stripe"),
        ("", {**NEW, "name": "stripe"}, 409, "name_taken", "choose another name"),
        ("", {**NEW, "settings": {"mod": "inline"}}, 422, "bad_source", "sources.acme.mode"),
        ("", {**NEW, "settings": {"secrets": ["x"]}}, 422, "bad_body", "next to settings"),
        ("", {**NEW, "secrets": ["env:HOME"]}, 422, "bad_source", "stored by value"),
        ("", {**NEW, "settings": {"verify_token": "file:/etc/passwd"}}, 422, "bad_source", "verify_token"),
        ("", {**NEW, "secret": "x"}, 422, "bad_body", "secret"),
        ("/nope/rotate", {"secret": "x"}, 404, "not_found", "no managed source nope"),
        ("/acme/rotate", {"finish": True, "grace_seconds": 5}, 422, "bad_body", "needs a secret"),
        ("/acme/rotate", {}, 422, "bad_body", "pass the new secret, or finish"),
        ("/acme/rotate", {"secret": None}, 422, "bad_body", "pass the new secret, or finish"),
        ("/acme/rotate", {"secret": "x", "finish": True}, 422, "bad_body", "pass the new secret, or finish"),
        ("/nope/tenants", {"tenant": "a", "secrets": ["x"]}, 404, "not_found", "no source nope"),
        ("/stripe/tenants", {"tenant": "a/b", "secrets": ["x"]}, 422, "bad_source", "up to 128 letters"),
        ("/stripe/tenants", {"tenant": "a"}, 422, "bad_source", "needs a secret"),
        (
            "/stripe/tenants/nope/rotate",
            {"secret": "x"},
            404,
            "not_found",
            "The source stripe has no managed tenant nope",
        ),
    ],
)
async def test_change_is_refused_with_a_sentence(
    program: httpx.AsyncClient, path: str, body: dict[str, object], status: int, code: str, message: str
) -> None:
    response = await program.post(f"/api/sources{path}", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code) and message in error["message"]
    assert error["message"][-1] in ".?"


async def test_only_an_admin_may_change_and_a_reader_may_list(site: Site) -> None:
    async with site.program("replayer") as program:
        assert (await program.post("/api/sources", json=NEW)).status_code == 403
        assert (await program.post("/api/sources/stripe/tenants", json={"tenant": "a"})).status_code == 403
        assert (await program.delete("/api/sources/stripe/tenants/a")).status_code == 403
        assert (await program.get("/api/sources/stripe/tenants")).json() == {"tenants": [], "next": None}


async def test_without_a_key_nothing_is_added(make_inbox: Callable[..., Inbox]) -> None:
    inbox = make_inbox()
    async with inbox.lifespan(), dashboard_of(inbox) as site, site.program() as program:
        response = await program.post("/api/sources", json=NEW)
        assert response.status_code == 409 and "oncehook keys generate" in response.json()["error"]["message"]
