"""Failover of PostgreSQL: a synchronous standby has every acked event, whichever process acked it."""

import asyncio
import json
import logging
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from oncehook import Inbox
from oncehook.model.errors import StoreUnavailable
from oncehook.store.identity import Identity
from oncehook.testing import deliver
from tests.support.events import STRIPE_SECRET, make_claim, stripe_body
from tests.support.load import assert_every_ack_is_recorded, under_load
from tests.support.proxy import proxied
from tests.support.serve import ONCEHOOK, write_config
from tests.support.servers import Postgres, private_postgres, run_sql
from tests.support.standbys import following
from tests.support.stores import open_store
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

EVENTS = "SELECT event_id FROM webhook_receipts ORDER BY event_id"


@pytest.fixture(scope="module")
def primary() -> Iterator[Postgres]:
    """A cluster for the tests of this file. The last of them kills it."""
    with private_postgres() as server:
        yield server


def make_receiver(database: str) -> Inbox:
    inbox = Inbox(database, worker=False, claim_timeout="1s")
    inbox.source("stripe", secrets=[STRIPE_SECRET])
    return inbox


async def send(inbox: Inbox, event_id: str) -> int:
    return (await deliver(inbox, "stripe", stripe_body(event_id))).status


async def restart(server: Postgres) -> None:
    await asyncio.to_thread(server.stop, kill=True)
    await asyncio.to_thread(server.start)


@pytest.mark.rest
async def test_asynchronous_standby_is_reported_as_a_risk(
    primary: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with following(primary):
        database = primary.database()
        with caplog.at_level(logging.WARNING, "oncehook"):
            async with make_receiver(database).lifespan():
                pass
        (line,) = [record for record in caplog.records if vars(record).get("event") == "durability_risk"]
        assert "asynchronous standby" in str(line.__dict__)
        findings = await asyncio.to_thread(doctor, write_config(tmp_path, database))
        assert [finding["level"] for finding in findings if "asynchronous standby" in finding["message"]] == ["note"]


@pytest.mark.torture
async def test_address_that_leads_to_a_standby_is_unavailable_until_the_promotion(primary: Postgres) -> None:
    """As behind a proxy or a name that changes. Every connection is opened again without a restart."""
    database = primary.database(migrated=True)
    changes: list[Identity] = []
    async with following(primary) as standby, proxied(database) as (proxy, through):
        await eventually(lambda: standby.has_received_all(), "the standby has the database")
        async with open_store(through, claim_timeout=0.5) as store:
            store.identities.on_identity_change(changes.append)
            await store.claims.insert([make_claim("before")])
            await store.identities.check()
            await eventually(lambda: standby.has_received_all(), "the standby has the event")
            proxy.target = "127.0.0.1", standby.server.port
            proxy.refuse()
            proxy.accept()
            with pytest.raises(StoreUnavailable, match="read-only"):
                await store.claims.insert([make_claim("during")])
            with pytest.raises(StoreUnavailable, match="read-only"):
                await store.identities.check()
            with pytest.raises(asyncpg.TargetServerAttributeNotMatched):
                await store.transaction().connection()
            await asyncio.to_thread(standby.promote)
            (claimed,) = await store.claims.insert([make_claim("during")])
            assert claimed.fresh
            transaction = store.transaction()
            await transaction.connection()
            await transaction.rollback()
            await store.identities.check()
    assert [identity.name.split("/")[1] for identity in changes] == ["00000002"]


@pytest.mark.rest
async def test_duplicate_is_not_acked_while_the_synchronous_standby_lacks_the_event(primary: Postgres) -> None:
    """The standby is away and the primary restarts: receipts that waited for the standby are visible from then on."""
    database = primary.database()
    async with make_receiver(database).lifespan():
        pass  # the schema
    async with following(primary) as standby:
        await standby.make_synchronous()
        inbox = make_receiver(database)
        async with inbox.lifespan():
            assert await send(inbox, "evt_before") == 202
            standby.link.stall()
            assert await send(inbox, "evt_late") == 503
            await restart(primary)
            assert await asyncio.to_thread(run_sql, database, EVENTS) == [("evt_before",), ("evt_late",)]
            assert await send(inbox, "evt_late") == 503, "acked from a row that is on no standby"
            assert await send(inbox, "evt_before") == 503
            standby.link.flow()
            await standby.until_replicating("sync")
            assert await send(inbox, "evt_late") == 200
            assert await send(inbox, "evt_after") == 202
        await asyncio.to_thread(primary.stop, kill=True)
        await asyncio.to_thread(standby.promote)
        promoted = standby.server.url(database.rpartition("/")[2])
        events = await asyncio.to_thread(run_sql, promoted, EVENTS)
        assert events == [("evt_after",), ("evt_before",), ("evt_late",)]
        await assert_promoted_standby_takes_over(promoted)


async def assert_promoted_standby_takes_over(promoted: str) -> None:
    inbox = make_receiver(promoted)
    async with inbox.lifespan():
        assert await send(inbox, "evt_late") == 200
        assert await send(inbox, "evt_new") == 202


@pytest.mark.rest
async def test_failover_to_the_synchronous_standby_under_load_loses_no_acked_event() -> None:
    with private_postgres() as server:
        database = server.database()
        async with following(server) as standby, proxied(database) as (proxy, through):
            await standby.make_synchronous()
            async with under_load(through, random.randrange(2**32)) as load:
                await load.until_more(500)
                await asyncio.to_thread(server.stop, kill=True)
                await asyncio.to_thread(standby.promote)
                proxy.target = "127.0.0.1", standby.server.port
                proxy.refuse()
                proxy.accept()
                await load.until_more(1000)
            assert_every_ack_is_recorded(standby.server.url(database.rpartition("/")[2]), load)


def doctor(config: Path) -> list[dict[str, str]]:
    done = subprocess.run([ONCEHOOK, "doctor", "--json", "--config", str(config)], capture_output=True, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]
