"""Many tenants and several processes: ids, secrets and turns of one tenant do not touch those of another."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from oncehook.model.claim import Claim
from tests.faults.test_soak import megabytes
from tests.support.events import Rows, make_claim, stripe_body, stripe_headers
from tests.support.serve import Process, Wire, connected, process, request
from tests.support.stores import open_store
from tests.support.waiting import eventually
from tests.support.work import receipts_are

pytestmark = pytest.mark.anyio

APP = """
from oncehook import AsyncTransaction, Event, Inbox

inbox = Inbox()


async def secrets_of(tenant: str) -> list[str] | None:
    return [f"whsec_{tenant}"] if tenant.startswith("t") else None


inbox.source("stripe", secrets_for=secrets_of, tenants={"cache": CACHE, "lookups": "1000000/s"})


@inbox.on("stripe", "*")
async def handle(event: Event, tx: AsyncTransaction) -> None:
    await tx.execute(f"INSERT INTO applied (tenant, event_id) VALUES ('{event.tenant}', '{event.id}')")
"""

MAX_MEGABYTES = 20.0
"""How much the memory of a process may grow while it sees ever new tenants, after its cache is full."""


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    tenants: int
    events: int
    processes: int
    flood: int
    cache: int


SMALL = Size(tenants=60, events=5, processes=2, flood=600, cache=20)
MEDIUM = Size(tenants=500, events=4, processes=4, flood=1_500, cache=50)
LARGE = Size(tenants=10_000, events=20, processes=4, flood=10_000, cache=1_000)
SIZES = [
    pytest.param(SMALL, id="small"),
    pytest.param(MEDIUM, id="medium", marks=pytest.mark.torture),
    pytest.param(LARGE, id="large", marks=pytest.mark.long),
]


@contextmanager
def running(folder: Path, database: str, size: Size) -> Iterator[list[Process]]:
    """Services with workers on one database, each with the app."""
    (folder / "hooks.py").write_text(APP.replace("CACHE", str(size.cache)))
    config = folder / "oncehook.toml"
    config.write_text(f'database = "{database}"\npoll = "50ms"\nlog_level = "error"\nconcurrency = 4\n')
    with ExitStack() as stack:
        yield [stack.enter_context(process(config, app="hooks:inbox", cwd=folder)) for _ in range(size.processes)]


async def post(wire: Wire, tenant: int, body: bytes, signer: int) -> int:
    """Deliver to a tenant until the answer is not 503, as a provider does. Returns the status."""
    message = request(f"/webhooks/stripe/t{tenant}", stripe_headers(body, f"whsec_t{signer}"), body)
    while True:
        await wire.say(message)
        status = (await wire.answer()).status
        if status != 503:
            return status


async def send_all(services: list[Process], tenants: range, events: int) -> Counter[int]:
    """Deliver the same event ids for every tenant. Each tenant also gets a delivery that another tenant signed."""
    statuses: Counter[int] = Counter()

    async def send(number: int, of: int) -> None:
        async with connected(services[number % len(services)].port) as wire:
            for tenant in tenants[number::of]:
                for event in range(events):
                    statuses[await post(wire, tenant, stripe_body(f"evt_{event}"), tenant)] += 1
                statuses[await post(wire, tenant, stripe_body("evt_forged"), tenant + 1)] += 1

    senders = 4 * len(services)
    await asyncio.gather(*(send(number, senders) for number in range(senders)))
    return statuses


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", SIZES)
async def test_tenants_are_isolated_and_memory_stays_flat(
    database: str, tmp_path: Path, rows: Rows, size: Size
) -> None:
    rows("CREATE TABLE applied (tenant text NOT NULL, event_id text NOT NULL)")
    first = size.tenants // 4
    with running(tmp_path, database, size) as services:
        statuses = await send_all(services, range(first), size.events)
        before = [megabytes(service.process.pid) for service in services]
        statuses += await send_all(services, range(first, size.tenants), size.events)
        after = [megabytes(service.process.pid) for service in services]
        total = size.tenants * size.events
        await eventually(receipts_are(rows, "processed", total), "every event is processed", within=1800)
    assert statuses == {202: total, 401: size.tenants}, "an event was a duplicate, or a forged one was accepted"
    assert rows("SELECT count(*), count(DISTINCT tenant) FROM applied") == [(total, size.tenants)]
    assert rows("SELECT tenant, event_id FROM applied GROUP BY tenant, event_id HAVING count(*) > 1") == []
    print(f"memory in MB, before: {before}, after: {after}")
    assert max(b - a for a, b in zip(before, after, strict=True)) < MAX_MEGABYTES


async def waiting_flood(database: str, count: int) -> AsyncIterator[list[Claim]]:
    for start in range(0, count, 500):
        yield [make_claim(f"evt_{number}", tenant="t-flood") for number in range(start, min(start + 500, count))]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", SIZES)
async def test_tenant_after_a_flood_waits_a_few_turns(database: str, tmp_path: Path, rows: Rows, size: Size) -> None:
    rows("CREATE TABLE applied (tenant text NOT NULL, event_id text NOT NULL)")
    async with open_store(database) as store:
        await store.pauses.pause("stripe", "test")
        async for claims in waiting_flood(database, size.flood):
            await store.claims.insert(claims)
        with running(tmp_path, database, size):
            await store.claims.insert([make_claim(f"evt_{number}", tenant="t-late") for number in range(3)])
            await store.pauses.resume("stripe", "test")
            await eventually(receipts_are(rows, "processed", size.flood + 3), "all are processed", within=600)
    ((late,),) = rows("SELECT max(processed_at) FROM webhook_receipts WHERE tenant = 't-late'")
    earlier = "SELECT count(*) FROM webhook_receipts WHERE tenant = 't-flood' AND processed_at < "
    ((before,),) = rows(earlier + "(SELECT max(processed_at) FROM webhook_receipts WHERE tenant = 't-late')")
    print(f"{before} of {size.flood} events of the flood were processed before the late tenant's, at {late}")
    turn = 4 * 9 * size.processes  # what the workers may have leased before: their slots, and eight times as much ahead
    assert before <= min(2 * turn, size.flood // 2)
