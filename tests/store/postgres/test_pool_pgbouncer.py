"""The whole inbox behind a real PgBouncer in transaction mode.

Each transaction may use another server connection.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from oncehook import Event, Inbox, Retry, SyncEvent
from oncehook.config.settings import Horizon, Settings
from oncehook.model.receipt import Filter
from oncehook.operations.forget import forget
from oncehook.operations.prune import prune
from oncehook.operations.rehearse import rehearse
from oncehook.operations.replay import replay
from oncehook.store import make_store
from oncehook.store.rows import Selection
from oncehook.testing import deliver
from tests.support.ages import PARTITIONS, set_age
from tests.support.events import make_claim, stripe_body
from tests.support.serial_order import Note, check_order
from tests.support.servers import PgBouncer, Postgres, private_pgbouncer, run_sql
from tests.support.sessions import CREATE_ROLE, FOUND, LEFT, OBJECTS
from tests.support.waiting import eventually
from tests.support.work import receipts_are

pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("pgbouncer")]


@pytest.fixture(scope="module")
def bouncer(postgres: Postgres) -> Iterator[PgBouncer]:
    with private_pgbouncer(postgres) as server:
        yield server


@pytest.fixture
def database(postgres: Postgres) -> str:
    """The address of the server itself, without the pooler."""
    return postgres.database(migrated=True)


async def test_pooler_is_detected_and_a_server_is_not(bouncer: PgBouncer, database: str) -> None:
    for address, pooler, pooled in [
        (bouncer.url(database), "auto", True),
        (bouncer.url(database), "none", False),
        (database, "auto", False),
        (database, "transaction", True),
    ]:
        store = make_store(replace(Settings(), database=address, pooler=pooler, migrate="never"))
        if (address, pooler) != (bouncer.url(database), "none"):  # that one is wrong here, and its user's choice
            await store.open()
            await store.close()
        assert store.database.pool.is_pooled is pooled  # type: ignore[attr-defined]


INSERT = "INSERT INTO ledger (event_id, note) VALUES ($1, $2)"

BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture
async def inbox(bouncer: PgBouncer, database: str) -> AsyncIterator[Inbox]:
    """An inbox that uses its database through the pooler."""
    inbox = Inbox(bouncer.url(database), worker=False, poll="100ms", lease="5s")
    inbox.source("stripe", secrets=["whsec_test"], serial_by="data.object.account")
    async with inbox.lifespan():
        run_sql(database, "CREATE TABLE ledger (event_id TEXT NOT NULL UNIQUE, note TEXT)")
        yield inbox


async def test_duplicate_events_are_handled_once_over_few_connections(inbox: Inbox, database: str) -> None:
    most = 0

    @inbox.on("stripe", "*", retry=Retry(attempts=5, first=0.01, most=0.02))
    async def write(event: Event, tx: Any) -> None:
        nonlocal most
        await tx.execute(INSERT, event.id, f"attempt {event.attempt}")
        observed = await tx.fetch("SELECT note FROM ledger WHERE event_id = ANY($1)", [event.id])
        assert len(observed) == 1
        async with tx.transaction():
            await tx.execute("UPDATE ledger SET note = $2 WHERE event_id = $1", event.id, "written")
        if event.attempt == 1 and int(event.id[4:]) % 7 == 0:
            raise ConnectionError("once more")

    inbox._runtime.start_worker()
    names = [f"evt_{n}" for n in range(200)] * 2
    random.Random(5).shuffle(names)
    for start in range(0, 400, 50):
        answers = await asyncio.gather(*(deliver(inbox, "stripe", stripe_body(n)) for n in names[start : start + 50]))
        assert {answer.status for answer in answers} <= {200, 202}
        most = max(most, run_sql(database, BACKENDS)[0][0])
    await eventually(receipts_are(database, "processed", 200), within=60)
    assert run_sql(database, "SELECT count(*), count(DISTINCT event_id) FROM ledger WHERE note = 'written'") == [
        (200, 200)
    ]
    assert run_sql(database, "SELECT count(*) FROM webhook_receipts WHERE attempts = 2") == [(29,)]
    await inbox._runtime.reception.duplicates.drain()
    assert run_sql(database, "SELECT count(*) FROM webhook_deliveries") == [(200,)]
    assert 1 < most <= PgBouncer.CONNECTIONS


async def test_batches_and_plain_functions_commit_with_the_processed_status(inbox: Inbox, database: str) -> None:
    @inbox.on("stripe", "invoice.*", batch=20)
    async def many(events: list[Event], tx: Any) -> None:
        for event in events:
            await tx.execute(INSERT, event.id, "batch")

    @inbox.on("stripe", "charge.*")
    def plain(event: SyncEvent, tx: Any) -> None:
        tx.execute(INSERT, event.id, tx.fetchval("SELECT 'plain'"))

    await inbox._runtime.store.claims.insert([make_claim(f"evt_{n}") for n in range(40)])
    await inbox._runtime.store.claims.insert([make_claim(f"chg_{n}", type="charge.paid") for n in range(10)])
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 50))
    assert run_sql(database, "SELECT note, count(*) FROM ledger GROUP BY note ORDER BY 1") == [
        ("batch", 40),
        ("plain", 10),
    ]


async def test_session_state_does_not_reach_another_handler(inbox: Inbox, database: str) -> None:
    """Many handlers use each server connection: none may observe the state of another."""
    for statement in OBJECTS:
        run_sql(database, statement)
    run_sql(database, CREATE_ROLE)
    observed: list[dict[str, Any]] = []

    @inbox.on("stripe", "invoice.paid")
    async def probe(event: Event, tx: Any) -> None:
        row = dict(await tx.fetchrow(FOUND))
        del row["last_number"], row["settings"]  # on the same servers receipts get numbers, and the pooler has settings
        observed.append(row)

    @inbox.on("stripe", "charge.paid", retry=Retry(attempts=2, first=0.01, most=0.02))
    async def leave(event: Event, tx: Any) -> None:
        await tx.execute(LEFT[event.id])
        if event.attempt == 1:
            raise ConnectionError("once more")

    left = [make_claim(name, type="charge.paid") for name in LEFT]
    probes = [make_claim(f"probe {number}") for number in range(3 * len(left))]
    inbox._runtime.start_worker()
    for start, claim in enumerate(left):
        await inbox._runtime.store.claims.insert([claim, *probes[3 * start : 3 * start + 3]])
    await eventually(receipts_are(database, "processed", len(left) + len(probes)), within=60)
    assert observed == [observed[0]] * len(probes)
    assert (observed[0]["customer"], observed[0]["app"], observed[0]["statements"]) == ("of everybody", "unset", 0)


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_session_state_does_not_reach_another_handler_with_sqlalchemy(
    bouncer: PgBouncer, database: str, driver: str
) -> None:
    """The session is cleaned on the handler's server connection, before the pooler reuses it."""
    address = bouncer.url(database).replace("postgresql:", f"postgresql+{driver}:")
    engine: Any
    if driver == "psycopg":
        engine = create_engine(address, connect_args={"prepare_threshold": None})
    else:
        named = {"statement_cache_size": 0, "prepared_statement_name_func": lambda: f"__{random.getrandbits(64)}__"}
        engine = create_async_engine(address, poolclass=NullPool, connect_args=named)
    inbox = Inbox(bouncer.url(database), worker=False, poll="100ms", lease="5s", engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])
    observed: list[Any] = []
    left = [
        "SET",
        "role",
        "temporary table",
        "cursor",
        "advisory lock",
        "prepared statement",
        "deferred trigger",
        "view",
    ]

    def work(event: Event | SyncEvent, session: Session) -> None:
        if event.type == "charge.paid":
            session.execute(text(LEFT[event.id]))
            if event.attempt == 1:
                raise ConnectionError("once more")
        else:
            row = dict(session.execute(text(FOUND)).mappings().one())
            del row["last_number"], row["settings"]  # on the same servers receipts get numbers
            observed.append(row)

    async def work_async(event: Event, tx: AsyncSession) -> None:
        await tx.run_sync(lambda session: work(event, session))

    def work_plain(event: SyncEvent, tx: Session) -> None:
        work(event, tx)

    for type in ("charge.paid", "invoice.paid"):
        retry = Retry(attempts=2, first=0.01, most=0.02)
        if driver == "psycopg":
            inbox.on("stripe", type, retry=retry)(work_plain)
        else:
            inbox.on("stripe", type, retry=retry)(work_async)
    async with inbox.lifespan():
        for statement in OBJECTS:
            run_sql(database, statement)
        run_sql(database, CREATE_ROLE)
        inbox._runtime.start_worker()
        for name in left:
            await inbox._runtime.store.claims.insert(
                [make_claim(name, type="charge.paid"), *map(make_claim, (f"{name} {n}" for n in "ab"))]
            )
        await eventually(receipts_are(database, "processed", 3 * len(left)), within=60)
    await engine.dispose() if driver == "asyncpg" else engine.dispose()
    assert observed == [observed[0]] * (2 * len(left))
    assert (observed[0]["customer"], observed[0]["app"], observed[0]["statements"]) == ("of everybody", "unset", 0)


async def test_events_of_a_serial_key_run_in_order(inbox: Inbox, database: str) -> None:
    notes: list[Note] = []

    @inbox.on("stripe", "*")
    async def note(event: Event, tx: Any) -> None:
        key, number = str(event["data.object.account"]), int(event.id.rpartition("-")[2])
        notes.append((key, number, "begin"))
        await tx.execute(INSERT, event.id, "serial")
        notes.append((key, number, "end"))

    inbox._runtime.start_worker()
    for number in range(12):
        for key in ("acct_1", "acct_2", "acct_3"):
            body = stripe_body(f"{key}-{number}", data={"object": {"id": "in_1", "account": key}})
            assert (await deliver(inbox, "stripe", body)).status == 202
    await eventually(receipts_are(database, "processed", 36))
    assert check_order(notes) == {f"acct_{n}": list(range(12)) for n in (1, 2, 3)}


async def test_heartbeat_keeps_the_lease_of_a_running_handler(bouncer: PgBouncer, database: str) -> None:
    inbox = Inbox(bouncer.url(database), worker=False, lease="500ms")
    inbox.source("stripe", secrets=["whsec_test"])
    attempts: list[int] = []
    may_end = asyncio.Event()

    @inbox.on("stripe", "*")
    async def wait(event: Event) -> None:
        attempts.append(event.attempt)
        await may_end.wait()

    async with inbox.lifespan():
        await inbox._runtime.store.claims.insert([make_claim("evt_1")])
        inbox._runtime.start_worker()
        extensions: set[Any] = set()

        def is_extended() -> bool:
            extensions.update(run_sql(database, "SELECT lease_until FROM webhook_receipts"))
            return len(extensions) > 7  # three per lease: two leases have passed

        await eventually(is_extended, "the heartbeat extends the lease")
        may_end.set()
        await eventually(receipts_are(database, "processed", 1))
    assert attempts == [1], "the lease must not be lost"


async def test_replay_and_rehearsal_work_behind_a_pooler(inbox: Inbox, database: str) -> None:
    @inbox.on("stripe", "*")
    async def write(event: Event, tx: Any) -> None:
        await tx.execute("INSERT INTO ledger VALUES ($1, $2) ON CONFLICT DO NOTHING", event.id, "once")

    await inbox._runtime.store.claims.insert([make_claim(f"evt_{n}") for n in range(20)])
    inbox._runtime.start_worker()
    await eventually(receipts_are(database, "processed", 20))
    rehearsed = await rehearse(
        inbox._runtime.store, inbox._runtime.handlers, (await inbox._runtime.store.receipts.find(Filter(), limit=1))[0]
    )
    assert (rehearsed.error, len(rehearsed.statements)) == (None, 1)
    assert (await replay(inbox._runtime.store, Selection(Filter(status="processed")))).count == 20
    done = "SELECT count(*) FROM webhook_receipts WHERE status = 'processed' AND replays = 1"
    await eventually(lambda: run_sql(database, done) == [(20,)])
    assert run_sql(database, "SELECT count(*) FROM ledger") == [(20,)]


async def test_prune_and_forget_work_behind_a_pooler(inbox: Inbox, database: str) -> None:
    await inbox._runtime.store.claims.insert([make_claim(f"evt_{n}") for n in range(4)])
    set_age(database, "evt_0", 60, "processed")
    set_age(database, "evt_1", 59, "processed")
    set_age(database, "evt_2", 59, "failed")
    old = f"webhook_payloads_{datetime.now(UTC) - timedelta(days=60):%Y%m%d}"
    assert (old,) in run_sql(database, PARTITIONS)
    done = await prune(inbox._runtime.store, [Horizon("stripe", 30 * 86400.0, 30 * 86400.0)])
    assert done is not None and done.receipts == {"stripe": 2} and old in done.days
    assert (old,) not in run_sql(database, PARTITIONS)
    assert run_sql(database, "SELECT event_id FROM webhook_receipts ORDER BY 1") == [("evt_2",), ("evt_3",)]
    receipts = await inbox._runtime.store.retention.with_object("in_1")
    assert await forget(inbox._runtime.store, receipts, actor="test", object_id="in_1") == 2


async def test_concurrent_starts_migrate_once(bouncer: PgBouncer, database: str) -> None:
    stores = [make_store(Settings(database=bouncer.url(database))) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    assert await stores[0].schema.pending() == []
    assert run_sql(database, "SELECT count(*) = max(number) FROM webhook_migrations") == [(True,)]
    await asyncio.gather(*(store.close() for store in stores))


async def test_listen_returns_immediately_behind_a_pooler(inbox: Inbox, database: str) -> None:
    def fail() -> None:
        raise AssertionError("a worker behind a pooler must not listen")

    await asyncio.wait_for(inbox._runtime.store.wakeups.listen(fail), 30)
    await inbox._runtime.store.wakeups.notify()  # may wake workers that are not behind a pooler
