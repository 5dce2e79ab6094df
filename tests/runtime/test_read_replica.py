"""The dashboard reads from a real standby while it is current, and from the primary otherwise."""

from collections.abc import Iterator
from typing import Any

import pytest

from oncehook import Inbox
from oncehook.runtime import read_replica
from oncehook.runtime.read_replica import store_to_show
from oncehook.store.replica import ReplicaMonitor
from tests.support.dashboard import Site, dashboard_of, send
from tests.support.events import STRIPE_SECRET
from tests.support.servers import Postgres, private_postgres, run_sql
from tests.support.standbys import Standby, following
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def primary() -> Iterator[Postgres]:
    with private_postgres() as server:
        yield server


def monitor_of(inbox: Inbox) -> ReplicaMonitor:
    assert inbox._runtime.replica is not None
    return inbox._runtime.replica.monitor


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_replica, "INTERVAL", 0.1)


PAGES = (
    "/",
    "/events",
    "/events?search=evt_1",
    "/events/{}",
    "/events/{}/raw",
    "/dead",
    "/effects",
    "/sources",
    "/audit",
)
ENDPOINTS = ("/api/overview", "/api/events", "/api/events/{}", "/api/dead", "/api/effects", "/api/sources")


@pytest.mark.rest
async def test_pages_read_from_the_standby_and_fall_back_to_the_primary(primary: Postgres, emitted: Any) -> None:
    database = primary.database(migrated=True)
    async with following(primary) as standby:
        replica = standby.server.url(database.rpartition("/")[2])
        inbox = Inbox(database, worker=False, read_database=replica, read_max_lag="1s", claim_timeout="4s")
        inbox.source("stripe", secrets=[STRIPE_SECRET])
        async with dashboard_of(inbox) as site:
            receipt = await send(inbox, "evt_1")
            run_sql(database, "UPDATE webhook_receipts SET status = 'processed', attempts = 1")
            await until_current(inbox)
            await assert_every_page_reads_the_standby(inbox, site, replica, receipt)
            await assert_a_change_is_shown_at_once(site, receipt)

            standby.link.stall()  # it receives nothing more
            later = await send(inbox, "evt_2")
            await eventually(lambda: not monitor_of(inbox).is_usable, "the standby is too far behind")
            assert await events_shown(site) == {"evt_1", "evt_2"}
            standby.link.flow()
            await until_current(inbox)

            standby.server.stop()
            async with site.program() as program:
                assert (await program.get(f"/api/events/{later}")).status_code == 200
            assert await events_shown(site) == {"evt_1", "evt_2"}
            await eventually(lambda: monitor_of(inbox).problem, "the standby is known to be down")
            standby.server.start()
            await until_current(inbox)
        assert store_to_show(inbox._runtime) is inbox._runtime.store
        await assert_an_event_that_the_standby_lacks_is_shown(standby, database, replica)
    assert [name for name, _ in emitted if name.startswith("replica")][:2] == ["replica_not_used", "replica_used"]


async def until_current(inbox: Inbox) -> None:
    await eventually(lambda: monitor_of(inbox).is_usable, "the standby is current")


async def events_shown(site: Site) -> set[str]:
    async with site.program() as program:
        return {event["event_id"] for event in (await program.get("/api/events")).json()["events"]}


async def assert_every_page_reads_the_standby(inbox: Inbox, site: Site, replica: str, receipt: int) -> None:
    """No page that only shows data writes, and the statements run on the standby."""
    async with site.signed_in() as browser, site.program() as program:
        await until_current(inbox)  # signing in was a change
        for client, paths in ((browser, PAGES), (program, ENDPOINTS)):
            for path in paths:
                assert (await client.get(path.format(receipt))).status_code == 200, path
        overview, metrics = (await browser.get("/")).text, (await program.get("/metrics")).text
    assert "Read replica: " in overview and "s behind" in overview
    assert "oncehook_replica_lag_seconds" in metrics and "oncehook_replica_used 1.0" in metrics
    assert run_sql(replica, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'oncehook reads'")[0][0]


async def assert_a_change_is_shown_at_once(site: Site, receipt: int) -> None:
    """The page after a replay shows it, although the standby may not have it yet."""
    async with site.program() as program:
        assert (await program.post(f"/api/events/{receipt}/replay", json={})).status_code == 200
        assert (await program.get(f"/api/events/{receipt}")).json()["replays"] == 1


async def assert_an_event_that_the_standby_lacks_is_shown(standby: Standby, database: str, replica: str) -> None:
    inbox = Inbox(database, worker=False, read_database=replica, read_max_lag="1h")
    inbox.source("stripe", secrets=[STRIPE_SECRET])
    async with dashboard_of(inbox) as site, site.program() as program:
        await until_current(inbox)
        standby.link.stall()
        receipt = await send(inbox, "evt_3")
        assert await events_shown(site) == {"evt_1", "evt_2"}, "the list is read from the standby"
        assert (await program.get(f"/api/events/{receipt}")).json()["event_id"] == "evt_3"
        standby.link.flow()


@pytest.mark.rest
async def test_standby_of_another_cluster_is_not_read(primary: Postgres, postgres: Postgres) -> None:
    database, other = primary.database(migrated=True), postgres.database(migrated=True)
    inbox = Inbox(database, worker=False, read_database=other)
    inbox.source("stripe", secrets=[STRIPE_SECRET])
    async with inbox.lifespan():
        await send(inbox, "evt_1")
        assert monitor_of(inbox).state.startswith("not used: it is no")
        assert len(await store_to_show(inbox._runtime).receipts.by_event_id("evt_1", limit=2)) == 1
