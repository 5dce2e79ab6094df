"""An inbox with shards as a whole: the dashboard, the API, the probes and the metrics show all of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from oncehook import Inbox
from tests.support.dashboard import dashboard_of
from tests.support.servers import Postgres
from tests.support.shards import ShardDatabases, federation_of, post, shard_databases, stripe_sources

pytestmark = pytest.mark.anyio


@pytest.fixture
def databases(postgres: Postgres, tmp_path: Path) -> Iterator[ShardDatabases]:
    with shard_databases(postgres, tmp_path, "a") as made:
        yield made


async def test_dashboard_and_api_show_the_events_of_all_shards(databases: ShardDatabases) -> None:
    configuration = databases.configuration(sources=stripe_sources("one", "two"), a='sources = ["two"]')
    inbox = Inbox(config=configuration, worker=False)
    async with dashboard_of(inbox) as site:
        for source in ("one", "two"):
            assert await post(inbox, source, f"evt_{source}") == 202
        async with site.program() as program, site.signed_in() as browser:
            events = (await program.get("/api/events")).json()["events"]
            assert [event["event_id"] for event in events] == ["evt_two", "evt_one"]
            for event in events:
                shown = (await program.get(f"/api/events/{event['receipt']}")).json()
                assert shown["event_id"] == event["event_id"]
                assert event["event_id"] in (await browser.get(f"/events/{event['receipt']}")).text
            page = (await browser.get("/events")).text
            assert "evt_one" in page and "evt_two" in page and "Shards that do not respond" not in page
            assert "two" in (await browser.get("/")).text
            assert (await program.get("/readyz")).text == "ready\n"
            await federation_of(inbox).members["a"].close()
            await browser.get("/events")
            page = (await browser.get("/events")).text
            assert "evt_one" in page and "evt_two" not in page and "Shards that do not respond" in page
            ready = await program.get("/readyz")
            assert ready.status_code == 200 and ready.text == "ready\nshard a is unavailable\n"
            assert b'source="one"' in (await program.get("/metrics")).content
            await federation_of(inbox).members["a"].open()
