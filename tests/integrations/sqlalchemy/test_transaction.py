"""SQLAlchemy on both databases, asynchronous and synchronous: ORM work and the mark are one, or nothing."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from oncehook import ConfigurationError, Effect, Event, Inbox, Retry
from oncehook.model.receipt import Filter
from oncehook.operations.rehearse import Rehearsal, rehearse
from oncehook.store.sqlite import handler as sqlite_handler
from oncehook.store.transaction import TransactionClosed
from oncehook.testing import deliver
from tests.support.events import Rows, make_claim, stripe_body
from tests.support.servers import Postgres, ask
from tests.support.waiting import eventually

pytestmark = pytest.mark.anyio

QUICK = Retry(attempts=5, first=0.01, most=0.02)
SLOW = Retry(attempts=5, first=3600, most=3600)
RECEIPTS = "SELECT status, attempts FROM webhook_receipts ORDER BY id"
INVOICES = "SELECT id, status FROM invoices ORDER BY id"
STEAL = "UPDATE webhook_receipts SET lease = lease + 1 RETURNING id"
Work = Callable[[Event, Session], None]


class Base(DeclarativeBase):
    pass


class Invoice(Base):
    __tablename__ = "invoices"

    id: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str]


def make_engine(database: str, kind: str, **options: Any) -> Engine | AsyncEngine:
    scheme, rest = database.split(":", 1)
    drivers = {
        ("sqlite", "async"): "sqlite+aiosqlite",
        ("sqlite", "sync"): "sqlite",
        ("postgresql", "async"): "postgresql+asyncpg",
        ("postgresql", "sync"): "postgresql+psycopg",
    }
    address = f"{drivers[scheme, kind]}:{rest}"
    return create_async_engine(address, **options) if kind == "async" else create_engine(address, **options)


async def dispose(engine: Engine | AsyncEngine) -> None:
    if isinstance(engine, AsyncEngine):
        await engine.dispose()
    else:
        engine.dispose()


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def engine(database: str, kind: str) -> AsyncIterator[Engine | AsyncEngine]:
    engine = make_engine(database, kind)
    yield engine
    await dispose(engine)


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], engine: Any, rows: Rows) -> AsyncIterator[Inbox]:
    """A started inbox on the user's engine, with one event in it and no worker yet."""
    inbox = make_inbox(worker=False, engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE invoices (id TEXT PRIMARY KEY, status TEXT NOT NULL)")
        await inbox._runtime.store.claims.insert([make_claim("evt_1")])
        yield inbox


@pytest.fixture
def is_sqlite(database: str) -> bool:
    return database.startswith("sqlite")


@pytest.fixture
def on_paid(inbox: Inbox, kind: str) -> Callable[..., None]:
    """Register work that is written once, for a `Session`, as the handler that the engine asks for."""

    def register(work: Work, **options: Any) -> None:
        async def asynchronous(event: Event, tx: AsyncSession) -> None:
            assert isinstance(tx, AsyncSession)
            await tx.run_sync(lambda session: work(event, session))

        def plain(event: Event, tx: Session) -> None:
            assert isinstance(tx, Session)
            assert threading.current_thread() is not threading.main_thread()
            work(event, tx)

        inbox.on("stripe", "invoice.paid", **options)(asynchronous if kind == "async" else plain)

    return register


async def worked_off(inbox: Inbox, rows: Rows, status: str) -> None:
    inbox._runtime.start_worker()
    await eventually(lambda: rows(RECEIPTS)[0][0] == status)


def last_error(rows: Rows) -> str:
    error: str = rows("SELECT last_error FROM webhook_receipts")[0][0]
    return error


# -- the transaction and the session ---------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
async def test_a_handler_that_replaces_its_transaction_fails(
    inbox: Inbox, rows: Rows, on_paid: Any, is_sqlite: bool, ending: str
) -> None:
    def replace(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        session.flush()
        for statement in [ending, "BEGIN"] if is_sqlite else [f"{ending} AND CHAIN"]:
            session.connection().exec_driver_sql(statement)

    on_paid(replace, retry=Retry(attempts=1))
    await worked_off(inbox, rows, "failed")
    assert "the handler ended its transaction itself" in last_error(rows)
    assert rows(INVOICES) == ([("evt_1", "paid")] if ending == "COMMIT" else [])


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK"])
async def test_a_handler_that_ends_its_transaction_fails(inbox: Inbox, rows: Rows, on_paid: Any, ending: str) -> None:
    """Without a transaction some drivers commit each statement by itself, and so the processed status."""

    def end(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        session.flush()
        session.connection().exec_driver_sql(ending)

    on_paid(end, retry=Retry(attempts=1))
    await worked_off(inbox, rows, "failed")
    assert "the handler ended its transaction itself" in last_error(rows)
    assert rows(INVOICES) == ([("evt_1", "paid")] if ending == "COMMIT" else [])


# -- the mark and the work ------------------------------------------------------------------------------------------


async def test_orm_work_and_the_mark_are_one(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    seen: list[Any] = []

    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="open"))
        session.flush()
        seen.append((rows(RECEIPTS)[0][0], rows(INVOICES)))
        invoice = session.scalars(select(Invoice)).one()
        invoice.status = "paid"

    on_paid(paid)
    await worked_off(inbox, rows, "processed")
    assert seen == [("processing", [])]
    assert rows(INVOICES) == [("evt_1", "paid")]
    assert rows("SELECT number, outcome FROM webhook_attempts") == [(1, "processed")]


async def test_what_was_only_added_is_flushed_with_the_mark(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    on_paid(lambda event, session: session.add(Invoice(id=event.id, status="paid")))
    await worked_off(inbox, rows, "processed")
    assert rows(INVOICES) == [("evt_1", "paid")]


async def test_many_handlers_at_once_each_have_a_session_of_their_own(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    on_paid(lambda event, session: session.add(Invoice(id=event.id, status="paid")))
    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number:02d}") for number in range(40)])
    inbox._runtime.start_worker()
    await eventually(lambda: {row[0] for row in rows(RECEIPTS)} == {"processed"})
    assert len(rows(INVOICES)) == 41


async def test_a_failing_handler_leaves_nothing(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        session.flush()
        raise ConnectionError("the bank is closed")

    on_paid(paid, retry=SLOW)
    await worked_off(inbox, rows, "retrying")
    assert rows(INVOICES) == []


async def test_what_fails_at_the_last_flush_is_the_handlers_failure(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    rows("INSERT INTO invoices VALUES ('evt_1', 'here before') RETURNING id")
    on_paid(lambda event, session: session.add(Invoice(id=event.id, status="paid")), retry=SLOW)
    await worked_off(inbox, rows, "retrying")
    assert "IntegrityError" in last_error(rows)
    assert rows(INVOICES) == [("evt_1", "here before")]


async def test_a_swallowed_error_is_not_marked_as_work(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    rows("INSERT INTO invoices VALUES ('evt_1', 'here before') RETURNING id")

    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id="in_2", status="paid"))
        session.flush()
        session.add(Invoice(id="evt_1", status="paid"))
        with pytest.raises(IntegrityError):
            session.flush()

    on_paid(paid, retry=SLOW)
    await worked_off(inbox, rows, "retrying")
    assert rows(INVOICES) == [("evt_1", "here before")]


async def test_a_worker_that_lost_its_lease_cannot_commit(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    ended = threading.Event()

    def paid(event: Event, session: Session) -> None:
        rows(STEAL)
        session.add(Invoice(id=event.id, status="the zombie's"))
        session.flush()
        ended.set()

    on_paid(paid)
    inbox._runtime.start_worker()
    await eventually(ended.is_set)
    await inbox.stop()
    assert (rows(RECEIPTS)[0][0], rows(INVOICES)) == ("processing", [])
    await inbox.start()


async def test_a_batch_shares_one_session(inbox: Inbox, rows: Rows, kind: str) -> None:
    sizes: list[int] = []

    async def asynchronous(events: list[Event], tx: AsyncSession) -> None:
        sizes.append(len(events))
        tx.add_all([Invoice(id=event.id, status="paid") for event in events])

    def plain(events: list[Event], tx: Session) -> None:
        sizes.append(len(events))
        tx.add_all([Invoice(id=event.id, status="paid") for event in events])

    inbox.on("stripe", "invoice.paid", batch=10)(asynchronous if kind == "async" else plain)
    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number}") for number in range(2, 9)])
    inbox._runtime.start_worker()
    await eventually(lambda: {row[0] for row in rows(RECEIPTS)} == {"processed"})
    assert (sizes, len(rows(INVOICES))) == ([8], 8)


# -- savepoints -----------------------------------------------------------------------------------------------------


async def test_a_released_savepoint_is_undone_with_the_handler(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    """SQLite's driver emits no BEGIN before a SAVEPOINT: by itself, the RELEASE would commit."""

    def paid(event: Event, session: Session) -> None:
        with session.begin_nested():
            session.add(Invoice(id="in_released", status="paid"))
        raise ValueError("after it")

    on_paid(paid, retry=SLOW)
    await worked_off(inbox, rows, "retrying")
    assert rows(INVOICES) == []


async def test_a_savepoint_undoes_only_its_own_block(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        with pytest.raises(ValueError, match="inner"), session.begin_nested():
            session.add(Invoice(id="in_undone", status="paid"))
            session.flush()
            raise ValueError("inner")
        with session.begin_nested():
            session.add(Invoice(id="in_kept", status="paid"))
        session.add(Invoice(id="in_outer", status="paid"))

    on_paid(paid)
    await worked_off(inbox, rows, "processed")
    assert rows(INVOICES) == [("in_kept", "paid"), ("in_outer", "paid")]


async def test_the_savepoint_of_an_async_session_is_the_same(inbox: Inbox, rows: Rows, kind: str) -> None:
    if kind == "sync":
        pytest.skip("a Session has no asynchronous savepoint")

    @inbox.on("stripe", "invoice.paid", retry=QUICK)
    async def paid(event: Event, tx: AsyncSession) -> None:
        async with tx.begin_nested():
            tx.add(Invoice(id=f"in_{event.attempt}", status="paid"))
        if event.attempt == 1:
            raise ValueError("after it")

    await worked_off(inbox, rows, "processed")
    assert rows(INVOICES) == [("in_2", "paid")]


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE"])
async def test_an_engine_that_begins_by_itself_already_is_welcome(
    inbox: Inbox, rows: Rows, engine: Any, is_sqlite: bool, on_paid: Any, begin: str
) -> None:
    """SQLAlchemy's own recipe against the trap, which users may have in their app."""
    if not is_sqlite:
        pytest.skip("the recipe is for SQLite")
    sync_engine = getattr(engine, "sync_engine", engine)

    @event.listens_for(sync_engine, "connect")
    def on_connect(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(sync_engine, "begin")
    def on_begin(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    await dispose(engine)
    on_paid(lambda event, session: session.add(Invoice(id=event.id, status="paid")))
    await worked_off(inbox, rows, "processed")
    assert rows(INVOICES) == [("evt_1", "paid")]


# -- whose session it is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["commit", "rollback", "close", "begin"])
async def test_the_end_of_the_transaction_is_not_the_handlers(
    inbox: Inbox, rows: Rows, on_paid: Any, verb: str
) -> None:
    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        session.flush()
        getattr(session, verb)()

    on_paid(paid, retry=SLOW)
    await worked_off(inbox, rows, "retrying")
    assert f"a handler may not call tx.{verb}()" in last_error(rows)
    assert rows(INVOICES) == []


async def test_a_rollback_in_raw_sql_is_not_marked_as_work(
    inbox: Inbox, rows: Rows, is_sqlite: bool, on_paid: Any
) -> None:
    if not is_sqlite:
        pytest.skip("PostgreSQL's drivers do not say")

    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        session.flush()
        session.execute(text("ROLLBACK"))

    on_paid(paid, retry=SLOW)
    await worked_off(inbox, rows, "retrying")


async def test_the_session_is_dead_once_its_handler_has_ended(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    kept: list[Session] = []

    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        kept.append(session)

    on_paid(paid)
    await worked_off(inbox, rows, "processed")
    for use in (
        lambda session: session.add(Invoice(id="in_late", status="paid")),
        lambda session: session.execute(select(Invoice)),
        lambda session: session.get(Invoice, "evt_1"),
        lambda session: session.begin_nested(),
        lambda session: session.connection(),
    ):
        with pytest.raises(TransactionClosed, match="after its handler had ended"):
            use(kept[0])


async def test_nothing_is_held_before_the_first_use(inbox: Inbox, rows: Rows, engine: Any, kind: str) -> None:
    held: list[int] = []
    handled = threading.Event()

    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        held.append(engine.pool.checkedout())
        handled.set()

    def plain(event: Event, tx: Session) -> None:
        held.append(engine.pool.checkedout())
        handled.set()

    inbox.on("stripe", "invoice.paid")(asynchronous if kind == "async" else plain)
    await worked_off(inbox, rows, "processed")
    assert held == [0]


async def test_every_connection_is_given_back(inbox: Inbox, rows: Rows, engine: Any, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        session.execute(select(func.count()).select_from(Invoice))
        if event.attempt == 1:
            raise ValueError("once")

    on_paid(paid, retry=QUICK)
    await inbox._runtime.store.claims.insert([make_claim(f"evt_{number:02d}") for number in range(40)])
    inbox._runtime.start_worker()
    await eventually(lambda: {row[0] for row in rows(RECEIPTS)} == {"processed"})
    await inbox.stop()
    assert engine.pool.checkedout() == 0
    await inbox.start()


async def test_a_handler_that_ran_out_of_time_leaves_nothing(inbox: Inbox, rows: Rows, engine: Any, kind: str) -> None:
    late = threading.Event()
    refused: list[BaseException] = []

    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        tx.add(Invoice(id=event.id, status="paid"))
        await tx.flush()
        try:
            await asyncio.sleep(60)
        finally:
            refused.append(TimeoutError())

    def plain(event: Event, tx: Session) -> None:
        tx.add(Invoice(id=event.id, status="paid"))
        tx.flush()
        late.wait(20)
        try:
            tx.execute(select(Invoice))
        except TransactionClosed as error:
            refused.append(error)

    inbox.on("stripe", "invoice.paid", retry=SLOW, timeout="0.3s")(asynchronous if kind == "async" else plain)
    await worked_off(inbox, rows, "retrying")
    late.set()
    await eventually(lambda: bool(refused))
    assert (rows(INVOICES), engine.pool.checkedout()) == ([], 0)


async def test_a_handler_that_ran_out_of_time_in_a_statement_is_interrupted(
    inbox: Inbox, rows: Rows, is_sqlite: bool, on_paid: Any
) -> None:
    endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"

    def paid(event: Event, session: Session) -> None:
        session.add(Invoice(id=event.id, status="paid"))
        session.flush()
        session.execute(text(endless if is_sqlite else "SELECT pg_sleep(60)"))

    on_paid(paid, retry=SLOW, timeout="0.3s")
    await worked_off(inbox, rows, "retrying")
    assert rows(INVOICES) == []


# -- SQLite's one writer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goes_on", [True, False], ids=["sends more", "just returns"])
async def test_a_handler_that_keeps_the_door_from_writing_is_rolled_back_and_retried(
    inbox: Inbox, rows: Rows, is_sqlite: bool, kind: str, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    if not is_sqlite:
        pytest.skip("PostgreSQL has many writers")
    monkeypatch.setattr(sqlite_handler, "MAX_HANDLER_SECONDS", 0.2)
    holding, claimed = threading.Event(), threading.Event()

    def started(event: Event, session: Session) -> None:
        session.add(Invoice(id=f"{event.id} {event.attempt}", status="paid"))
        session.flush()

    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        await tx.run_sync(lambda session: started(event, session))
        if event.id == "evt_1" and event.attempt == 1:
            holding.set()
            await eventually(claimed.is_set)
            if goes_on:
                await tx.execute(select(Invoice))

    def plain(event: Event, tx: Session) -> None:
        started(event, tx)
        if event.id == "evt_1" and event.attempt == 1:
            holding.set()
            claimed.wait(10)
            if goes_on:
                tx.execute(select(Invoice))

    inbox.on("stripe", "invoice.paid", retry=QUICK)(asynchronous if kind == "async" else plain)
    inbox._runtime.start_worker()
    await eventually(holding.is_set)
    await asyncio.wait_for(inbox._runtime.store.claims.insert([make_claim("evt_2")]), 5)
    claimed.set()
    await eventually(lambda: [row[0] for row in rows(RECEIPTS)] == ["processed", "processed"])
    assert rows(INVOICES) == [("evt_1 2", "paid"), ("evt_2 1", "paid")]
    told = rows("SELECT error FROM webhook_attempts WHERE outcome = 'retrying'")[0][0]
    assert "more than 0.2 s" in told and "another session of your code blocked it" in told


async def test_handlers_connections_are_durable_and_leave_checkpoints_to_the_writer(
    inbox: Inbox, rows: Rows, is_sqlite: bool, on_paid: Any
) -> None:
    if not is_sqlite:
        pytest.skip("these are SQLite's")
    seen: list[Any] = []

    def paid(event: Event, session: Session) -> None:
        pragmas = ("journal_mode", "synchronous", "wal_autocheckpoint", "busy_timeout")
        seen.extend(session.scalar(text(f"PRAGMA {pragma}")) for pragma in pragmas)

    on_paid(paid)
    await worked_off(inbox, rows, "processed")
    assert seen == ["wal", 2, 0, 5000]


# -- start-up -------------------------------------------------------------------------------------------------------


async def refused(inbox: Inbox) -> str:
    with pytest.raises(ConfigurationError) as refusal:
        await inbox.start()
    return str(refusal.value)


async def test_an_engine_on_another_database_is_refused(
    make_inbox: Callable[..., Inbox], is_sqlite: bool, kind: str, tmp_path: Path, postgres: Postgres
) -> None:
    other = make_engine(f"sqlite:///{tmp_path / 'other.db'}" if is_sqlite else postgres.database(), kind)
    assert "use the same" in await refused(make_inbox(engine=other))
    await dispose(other)


def test_an_engine_of_another_kind_of_database_is_refused(
    make_inbox: Callable[..., Inbox], is_sqlite: bool, kind: str, tmp_path: Path, postgres: Postgres
) -> None:
    other = make_engine(postgres.url("postgres") if is_sqlite else f"sqlite:///{tmp_path / 'other.db'}", kind)
    with pytest.raises(ConfigurationError, match="the inbox is on"):
        make_inbox(engine=other)


async def test_a_database_in_memory_is_refused(make_inbox: Callable[..., Inbox], is_sqlite: bool) -> None:
    if is_sqlite:
        engine = create_engine("sqlite://")
        assert "a database in memory" in await refused(make_inbox(engine=engine))
        engine.dispose()


async def test_the_same_database_by_another_name_is_welcome(
    make_inbox: Callable[..., Inbox], database: str, is_sqlite: bool, kind: str, tmp_path: Path
) -> None:
    if is_sqlite:
        (tmp_path / "link.db").symlink_to(tmp_path / "inbox.db")
        other = make_engine(f"sqlite:///{tmp_path / 'link.db'}", kind)
    else:
        other = make_engine(database.replace("127.0.0.1", "localhost"), kind)
    async with make_inbox(engine=other).lifespan():
        pass
    await dispose(other)


async def test_another_schema_of_the_same_database_is_refused(
    make_inbox: Callable[..., Inbox], database: str, is_sqlite: bool
) -> None:
    if not is_sqlite:
        engine = make_engine(database, "sync", connect_args={"options": "-c search_path=elsewhere"})
        assert "the same search_path" in await refused(make_inbox(engine=engine))
        await dispose(engine)


async def test_an_engine_that_commits_each_statement_is_refused(
    make_inbox: Callable[..., Inbox], database: str, is_sqlite: bool, kind: str
) -> None:
    if not is_sqlite:
        engine = make_engine(database, kind, isolation_level="AUTOCOMMIT")
        assert "AUTOCOMMIT" in await refused(make_inbox(engine=engine))
        await dispose(engine)


async def test_a_handler_of_the_wrong_kind_is_refused(make_inbox: Callable[..., Inbox], engine: Any, kind: str) -> None:
    inbox = make_inbox(engine=engine)
    inbox.source("stripe", secrets=["whsec_test"])

    async def asynchronous(event: Event, tx: Any) -> None: ...

    def plain(event: Event, tx: Any) -> None: ...

    inbox.on("stripe", "invoice.paid")(plain if kind == "async" else asynchronous)
    assert "or pass a create_" in await refused(inbox)


async def test_a_handler_without_tx_may_be_of_either_kind(inbox: Inbox, rows: Rows, kind: str) -> None:
    async def asynchronous(event: Event) -> None: ...

    def plain(event: Event) -> None: ...

    inbox.on("stripe", "invoice.paid")(plain if kind == "async" else asynchronous)
    await worked_off(inbox, rows, "processed")


def test_what_is_no_engine_is_refused(make_inbox: Callable[..., Inbox], database: str) -> None:
    with pytest.raises(ConfigurationError, match="engine is a str"):
        make_inbox(engine=database)


async def test_the_users_engine_is_left_as_it_is(inbox: Inbox, database: str, kind: str, is_sqlite: bool) -> None:
    """An app's own sessions read without the write lock: a request that is open stops no delivery."""
    if kind == "sync" and is_sqlite:
        engine = inbox._runtime.sessions.engine
        with engine.connect() as reading:
            reading.execute(select(func.count()).select_from(Invoice))
            await asyncio.wait_for(inbox._runtime.store.claims.insert([make_claim("evt_2")]), 2)
    assert ask(database, "SELECT count(*) FROM webhook_receipts")[0][0] >= 1


# -- rehearsal ------------------------------------------------------------------------------------------------------


async def rehearsed(inbox: Inbox) -> Rehearsal:
    (receipt,) = await inbox._runtime.store.receipts.find(Filter(), limit=1)
    return await rehearse(inbox._runtime.store, inbox._runtime.handlers, receipt, inbox._runtime.sessions.transaction)


async def test_a_rehearsal_on_an_engine_shows_the_statements_and_leaves_nothing(
    inbox: Inbox, rows: Rows, on_paid: Any
) -> None:
    def paid(event: Event, session: Session) -> None:
        session.execute(text("INSERT INTO invoices VALUES ('in_0', 'open')"))
        try:
            with session.begin_nested():
                session.execute(text("DELETE FROM invoices"))
                raise LookupError
        except LookupError:
            session.add(Invoice(id=event.id, status="only added"))

    on_paid(paid)
    rehearsal = await rehearsed(inbox)
    assert rehearsal.error is None
    shown = [(one.sql.split()[0], one.rows, one.undone, one.error) for one in rehearsal.statements]
    assert shown == [("INSERT", 1, False, None), ("DELETE", 1, True, None), ("INSERT", 1, False, None)]
    assert rehearsal.statements[-1].args == ("evt_1", "only added")
    assert (rows(INVOICES), rows(RECEIPTS)) == ([], [("received", 0)])


async def test_a_rehearsal_on_an_engine_shows_no_statement_of_oncehooks_own(
    inbox: Inbox, rows: Rows, kind: str
) -> None:
    @inbox.effect
    def mail(effect: Effect) -> None: ...

    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        await event.effect("mail:in_1", mail)
        await tx.execute(text("SELECT 1"))

    def plain(event: Event, tx: Session) -> None:
        event.effect("mail:in_1", mail)
        tx.execute(text("SELECT 1"))

    inbox.on("stripe", "invoice.paid")(asynchronous if kind == "async" else plain)
    await deliver(inbox, "stripe", stripe_body("evt_1"))
    (receipt,) = await inbox._runtime.store.receipts.find(Filter(), limit=1)
    rehearsal = await inbox._runtime.rehearse(receipt)
    assert rehearsal.error is None and [one.sql for one in rehearsal.statements] == ["SELECT 1"]
    assert [(one["key"], one["new"]) for one in rehearsal.effects] == [("mail:in_1", True)]


async def test_a_rehearsal_on_an_engine_tells_what_failed(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        session.execute(text("INSERT INTO invoices VALUES ('in_0', 'open')"))
        session.execute(text("SELECT * FROM nowhere"))

    on_paid(paid)
    rehearsal = await rehearsed(inbox)
    assert rehearsal.error is not None and "nowhere" in rehearsal.error
    assert [one.error for one in rehearsal.statements] == [None, rehearsal.error]
    assert rows(INVOICES) == []


async def test_rehearsal_before_the_start_leaves_the_engine_as_it_is(
    make_inbox: Callable[..., Inbox], inbox: Inbox, engine: Any, rows: Rows, kind: str
) -> None:
    unstarted = make_inbox(worker=False, engine=engine)
    unstarted.source("stripe", secrets=["whsec_test"])

    async def asynchronous(event: Event, tx: AsyncSession) -> None:
        await tx.execute(text("SELECT 1"))

    def plain(event: Event, tx: Session) -> None:
        tx.execute(text("SELECT 1"))

    unstarted.on("stripe", "invoice.paid")(asynchronous if kind == "async" else plain)
    rows("UPDATE webhook_receipts SET status = 'processed'")
    pool = engine.pool
    listeners = len(list(pool.dispatch.checkin))
    for _ in range(2):
        [rehearsal] = await unstarted.rehearse("evt_1")
        assert rehearsal.error is None and [one.sql for one in rehearsal.statements] == ["SELECT 1"]
    assert engine.pool is pool  # one that is disposed of gets another
    assert len(list(pool.dispatch.checkin)) == listeners


async def test_a_rehearsed_handler_cannot_commit_its_session(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        session.execute(text("INSERT INTO invoices VALUES ('in_0', 'open')"))
        session.commit()

    on_paid(paid)
    rehearsal = await rehearsed(inbox)
    assert rehearsal.error is not None and "a handler may not call" in rehearsal.error
    assert rows(INVOICES) == []


async def test_an_attempt_keeps_no_parameters_of_a_statement(inbox: Inbox, rows: Rows, on_paid: Any) -> None:
    def paid(event: Event, session: Session) -> None:
        rows_of = [{"id": "in_0", "status": "CANARY"}, {"id": "in_0", "status": "CANARY"}]
        for row in rows_of:
            session.execute(text("INSERT INTO invoices VALUES (:id, :status)"), row)

    on_paid(paid, retry=SLOW)
    await worked_off(inbox, rows, "retrying")
    assert "IntegrityError" in last_error(rows)
    assert "CANARY" not in last_error(rows) and "in_0" not in last_error(rows)
    assert "CANARY" not in rows("SELECT error FROM webhook_attempts")[0][0]
