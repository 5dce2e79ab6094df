"""The spool in a running inbox: accepted without the database, claimed later, once."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from oncehook import Inbox
from oncehook.config.settings import SourceSettings
from oncehook.model.errors import ConfigurationError
from oncehook.providers.source import Source
from oncehook.runtime.spool import spools
from oncehook.testing import deliver
from oncehook.web.app import Service
from tests.support.encryption import ring
from tests.support.events import STRIPE_SECRET, Rows
from tests.support.proxy import Proxy, proxied
from tests.support.spool import spooled
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

EVENTS = "SELECT source, event_id FROM webhook_receipts ORDER BY source, event_id"


@pytest.mark.parametrize(
    ("provider", "settings", "expected"),
    [
        ("github", {}, True),  # never retries by itself
        ("slack", {}, True),
        ("stripe", {}, False),  # retries for three days
        ("stripe", {"spool": True}, True),
        ("github", {"spool": False}, False),
        ("github", {"mode": "inline"}, False),
    ],
)
def test_deliveries_of_providers_that_hardly_retry_are_spooled(
    provider: str, settings: dict[str, object], expected: bool
) -> None:
    source = Source(provider, SourceSettings(secrets=("whsec_test",), **settings), max_body=2**20)  # type: ignore[arg-type]
    assert spools(source) == expected


async def test_inline_source_cannot_be_spooled(make_inbox: Callable[..., Inbox], tmp_path: Path) -> None:
    inbox = make_inbox(spool=str(tmp_path / "spool"))
    inbox.source("stripe", secrets=[STRIPE_SECRET], mode="inline", spool=True)
    with pytest.raises(ConfigurationError, match=r"sources\.stripe\.spool is true and its mode is inline"):
        await inbox._runtime.start()


async def test_folder_that_cannot_be_written_prevents_the_start(
    make_inbox: Callable[..., Inbox], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="spool: "):
        await make_inbox(spool=str(tmp_path / "file"))._runtime.start()


def make_spooling(through: str, folder: Path, **settings: object) -> Inbox:
    options = {"claim_timeout": "2s", "poll": "50ms", "spool": str(folder / "spool"), "worker": False, **settings}
    inbox = Inbox(through, **options)  # type: ignore[arg-type]
    inbox.source("github", secrets=["github-secret"], encrypt="keys" in settings)
    inbox.source("stripe", secrets=[STRIPE_SECRET])
    return inbox


async def spool_one(inbox: Inbox, proxy: Proxy, event_id: str = "evt_1") -> None:
    """Cut the database off, and deliver an event that is spooled."""
    proxy.refuse()
    answer = await deliver(inbox, "github", id=event_id)
    assert (answer.outcome, answer.receipt) == ((202, "accepted"), None)


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_delivery_is_accepted_without_the_database_and_claimed_once_when_it_is_back(
    database: str, rows: Rows, tmp_path: Path
) -> None:
    async with proxied(database) as (proxy, through):
        inbox = make_spooling(through, tmp_path)
        async with (
            inbox.lifespan(),
            httpx.AsyncClient(transport=httpx.ASGITransport(app=Service(inbox)), base_url="http://test") as client,
        ):
            await spool_one(inbox, proxy)
            stripe = asyncio.create_task(deliver(inbox, "stripe", id="evt_2"))
            again = await deliver(inbox, "github", id="evt_1")
            assert (again.outcome, again.receipt) == ((202, "accepted"), None)
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.text) == (200, "spooling\n")
            assert "oncehook_spool_events 2.0" in (await client.get("/metrics")).text
            assert (await stripe).outcome == (503, "unavailable")
            proxy.accept()
            await eventually(lambda: rows(EVENTS) == [("github", "evt_1")], "the event is claimed")
            await eventually(lambda: spooled(tmp_path / "spool") == [], "the spool is empty")
            await eventually(lambda: _is(client, "/readyz", "ready\n"), "the inbox is ready")
            last = await deliver(inbox, "github", id="evt_1")
            assert last.outcome == (200, "duplicate")
            await inbox._runtime.reception.duplicates.drain()
            assert rows("SELECT count(*) FROM webhook_deliveries") == [(1,)], "only the delivery after the claim"


async def _is(client: httpx.AsyncClient, path: str, text: str) -> bool:
    return (await client.get(path)).text == text


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_event_of_an_encrypted_source_is_encrypted_in_the_spool(
    database: str, rows: Rows, tmp_path: Path
) -> None:
    async with proxied(database) as (proxy, through):
        inbox = make_spooling(through, tmp_path, keys=ring("2026a"))
        async with inbox.lifespan():
            proxy.refuse()
            answer = await deliver(inbox, "github", {"secret": "of the payload"}, type="push", id="evt_1")
            assert answer.status == 202
            for segment in (tmp_path / "spool").iterdir():
                assert b"of the payload" not in segment.read_bytes()
            proxy.accept()
            await eventually(lambda: rows(EVENTS) == [("github", "evt_1")], "the event is claimed")


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_next_process_claims_what_the_last_one_left(database: str, rows: Rows, tmp_path: Path) -> None:
    async with proxied(database) as (proxy, through):
        inbox = make_spooling(through, tmp_path, claim_timeout="500ms")
        async with inbox.lifespan():
            await spool_one(inbox, proxy)
        assert spooled(tmp_path / "spool") == ["evt_1"]
        proxy.accept()
        async with make_spooling(through, tmp_path).lifespan():
            await eventually(lambda: rows(EVENTS) == [("github", "evt_1")], "the event is claimed")
            await eventually(lambda: spooled(tmp_path / "spool") == [], "the spool is empty")
