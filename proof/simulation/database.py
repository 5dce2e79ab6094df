"""SQLite on the simulated clock, with faults at every statement.

The database is the real SQLite with the real statements. Its time functions and `random()` come from the simulation.
Triggers write each committed change of a receipt, an effect or a handler's row to the table `trace`.

The store gets a handle for each connection that it opens. When the handle is closed, or its process dies, the
connection behind it is kept for the next handle, also of the next run: reading the schema is slower than most
statements. By then it has no transaction and no unfinished statement. A closed handle raises as a closed connection
does.
"""

import asyncio
import datetime
import itertools
import sqlite3
import tempfile
import weakref
from functools import cache, cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from oncehook.config.settings import Settings
from oncehook.store import make_store

if TYPE_CHECKING:
    from proof.simulation.world import World

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
STEPS = (1, 5, 20, 60, 200)
"""After how many steps of SQLite's machine a statement is interrupted."""

UNITS = {"second": 1.0, "seconds": 1.0, "hour": 3600.0, "hours": 3600.0}

TRACE = """
CREATE TABLE ledger (receipt INTEGER NOT NULL, replays INTEGER NOT NULL, consumer TEXT NOT NULL);
CREATE TABLE trace (
    id INTEGER PRIMARY KEY AUTOINCREMENT, process TEXT, kind TEXT, row INTEGER, event TEXT, consumer TEXT, before TEXT,
    after TEXT, fence INTEGER, attempts_before INTEGER, attempts INTEGER, replays INTEGER, outcome TEXT
);
CREATE TRIGGER trace_claim AFTER INSERT ON webhook_receipts BEGIN
    INSERT INTO trace (process, kind, row, event, consumer, after, fence, attempts, replays)
    VALUES (simulated_process(), 'receipt', NEW.id, NEW.event_id, NEW.consumer, NEW.status, NEW.lease, NEW.attempts,
            NEW.replays);
END;
CREATE TRIGGER trace_receipt AFTER UPDATE OF status, lease, attempts, replays ON webhook_receipts
WHEN (OLD.status, OLD.lease, OLD.replays, OLD.attempts) <> (NEW.status, NEW.lease, NEW.replays, NEW.attempts) BEGIN
    INSERT INTO trace (process, kind, row, event, consumer, before, after, fence, attempts_before, attempts, replays,
                       outcome)
    VALUES (simulated_process(), 'receipt', NEW.id, NEW.event_id, NEW.consumer, OLD.status, NEW.status, NEW.lease,
            OLD.attempts, NEW.attempts, NEW.replays, NEW.outcome);
END;
CREATE TRIGGER trace_prune AFTER DELETE ON webhook_receipts BEGIN
    INSERT INTO trace (process, kind, row, event, consumer, before, fence, attempts, replays)
    VALUES (simulated_process(), 'pruned', OLD.id, OLD.event_id, OLD.consumer, OLD.status, OLD.lease, OLD.attempts,
            OLD.replays);
END;
CREATE TRIGGER trace_ledger AFTER INSERT ON ledger BEGIN
    INSERT INTO trace (process, kind, row, consumer, replays)
    VALUES (simulated_process(), 'ledger', NEW.receipt, NEW.consumer, NEW.replays);
END;
CREATE TRIGGER trace_request AFTER INSERT ON webhook_effects BEGIN
    INSERT INTO trace (process, kind, row, event, after, fence, attempts, replays)
    VALUES (simulated_process(), 'effect', NEW.id, NEW.key, NEW.status, NEW.lease, NEW.attempts, NEW.replays);
END;
CREATE TRIGGER trace_effect AFTER UPDATE OF status, lease, attempts, replays ON webhook_effects
WHEN (OLD.status, OLD.lease, OLD.replays, OLD.attempts) <> (NEW.status, NEW.lease, NEW.replays, NEW.attempts) BEGIN
    INSERT INTO trace (process, kind, row, event, before, after, fence, attempts_before, attempts, replays)
    VALUES (simulated_process(), 'effect', NEW.id, NEW.key, OLD.status, NEW.status, NEW.lease, OLD.attempts,
            NEW.attempts, NEW.replays);
END;
"""


class Machine:
    """The database file of all runs of this Python process, one run at a time."""

    def __init__(self) -> None:
        memory = Path("/dev/shm")  # noqa: S108  # a file system in memory, where there is one
        self._folder = tempfile.TemporaryDirectory(
            prefix="oncehook-simulation-", dir=memory if memory.is_dir() else None, ignore_cleanup_errors=True
        )
        self.path = Path(self._folder.name) / "inbox.db"
        self._template = Path(self._folder.name) / "template.db"
        self._pool: dict[Any, list[Any]] = {}
        self._numbers = itertools.count()
        self.world: World | None = None
        self.driver = simulated_sqlite(self)
        for path in (self.path, self._template):
            asyncio.run(_migrate(path))
        self.observer = sqlite3.connect(self.path, isolation_level=None, timeout=0)
        """A connection without faults, for the checks."""
        self.observer.row_factory = sqlite3.Row
        register_functions(self, self.observer)
        self.observer.executescript(TRACE)
        with_trace = sqlite3.connect(self._template)
        with_trace.executescript(TRACE)
        with_trace.close()

    def start(self, world: "World") -> None:
        """Begin a run with the rows of a new database."""
        self.world = world
        tables = self._tables
        self.observer.execute("BEGIN IMMEDIATE")
        for table in tables:
            self.observer.execute(f"DELETE FROM main.{table}")  # noqa: S608  # names of tables
            self.observer.execute(f"INSERT INTO main.{table} SELECT * FROM template.{table}")  # noqa: S608  # as above
        self.observer.execute("COMMIT")

    @cached_property
    def _tables(self) -> list[str]:
        self.observer.execute("ATTACH ? AS template", (str(self._template),))
        rows = self.observer.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_stat%'"
        )
        return [row[0] for row in rows]

    def as_new(self, sql: str) -> str:
        """Return the statement so that no connection has it prepared: SQLite counts the steps of all its runs."""
        return f"{sql}\n-- {next(self._numbers)}"

    def take(self, key: Any) -> Any | None:
        pool = self._pool.get(key)
        return pool.pop() if pool else None

    def give(self, key: Any, connection: Any) -> None:
        self._pool.setdefault(key, []).append(connection)


async def _migrate(path: Path) -> None:
    store = make_store(Settings(database=f"sqlite:///{path}"))
    await store.open()
    await store.close()


def register_functions(machine: Machine, connection: sqlite3.Connection) -> None:
    """Replace the functions of SQLite that read the time or are random."""

    def seconds(moment: str) -> float:
        assert machine.world is not None
        return machine.world.wall_time() if moment == "now" else _parse(moment)

    def strftime(form: str, moment: str | None, *modifiers: str | None) -> str | None:
        if moment is None or None in modifiers:
            return None
        at = seconds(moment)
        for modifier in modifiers:
            number, unit = str(modifier).split()
            at += float(number) * UNITS[unit]
        return _format(form, round(at, 3))

    def world() -> Any:
        return machine.world

    connection.create_function("strftime", -1, strftime)
    connection.create_function("julianday", 1, lambda at: None if at is None else seconds(at) / 86400 + 2440587.5)
    connection.create_function("random", 0, lambda: world().values.getrandbits(62))
    connection.create_function("simulated_process", 0, lambda: getattr(world().process, "name", None))


@cache
def _parse(moment: str) -> float:
    return (datetime.datetime.fromisoformat(moment) - EPOCH).total_seconds()


def _format(form: str, seconds: float) -> str:
    if form == "%s":
        return str(int(seconds))
    at = EPOCH + datetime.timedelta(seconds=seconds)
    if form == "%Y-%m-%dT%H:%M:%f000Z":
        return f"{at.isoformat(timespec='milliseconds')[:23]}000Z"
    assert form == "%Y-%m-%dT%H:%M:00.000000Z", form
    return f"{at.isoformat(timespec='minutes')[:16]}:00.000000Z"


def simulated_sqlite(machine: Machine) -> SimpleNamespace:
    """Make the replacement of the module `sqlite3` in the store: connections with faults and simulated time."""

    class Faults:
        connection: "FaultyConnection"

        def execute(self, sql: str, *args: Any) -> Any:
            return self._run(sql, super().execute, args)  # type: ignore[misc]

        def executemany(self, sql: str, *args: Any) -> Any:
            return self._run(sql, super().executemany, args)  # type: ignore[misc]

        def _run(self, sql: str, run: Any, args: Any) -> sqlite3.Cursor:
            world: Any = machine.world
            world.before(sql)
            interrupt = world.during(sql)
            self.connection.interrupt_in(interrupt, world)
            try:
                cursor: sqlite3.Cursor = run(sql if interrupt is None else machine.as_new(sql), *args)
            except sqlite3.OperationalError:
                world.stop_if_dead()
                raise
            if cursor.description is not None:
                self.connection.results.append(weakref.ref(cursor))
            try:
                world.after(sql)
            except BaseException:
                cursor.close()  # its statement ends here, and does not stay open with the traceback
                raise
            return cursor

    class FaultyCursor(Faults, sqlite3.Cursor):
        pass

    class FaultyConnection(Faults, sqlite3.Connection):
        key: Any = None
        is_interrupted = False

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.results: list[weakref.ref[sqlite3.Cursor]] = []  # cursors that may have unread rows

        @property
        def connection(self) -> "FaultyConnection":  # type: ignore[override]
            return self

        def interrupt_in(self, interrupt: Any, world: Any) -> None:
            """Stop the next statement, or the reading of its rows, after some steps of SQLite's machine."""
            if interrupt is not None or self.is_interrupted:
                steps = 0 if interrupt is None else world.faults.choice(STEPS)
                self.set_progress_handler(interrupt, steps)
                self.is_interrupted = interrupt is not None

        def rollback(self) -> None:
            machine.world.before("ROLLBACK")  # type: ignore[union-attr]
            super().rollback()
            machine.world.after("ROLLBACK")  # type: ignore[union-attr]

        def cursor(self, factory: Any = FaultyCursor) -> Any:
            return super().cursor(factory)

        def clean(self) -> None:
            """Close cursors and roll back, as closing does. A cursor that a traceback references would keep a lock."""
            self.interrupt_in(None, None)
            for result in self.results:
                if (cursor := result()) is not None:
                    cursor.close()
            self.results.clear()
            if self.in_transaction:
                sqlite3.Connection.execute(self, "ROLLBACK")
            self.set_authorizer(None)
            self.row_factory = None

    class Handle(sqlite3.Connection):
        """What `connect` returns to the store. The base class is not initialized, so its own methods raise."""

        is_clean = True
        """Whether the connection behind it can be used again. The connections of handlers record this."""

        def __init__(self, connection: FaultyConnection) -> None:
            self._behind: FaultyConnection | None = connection

        @property
        def behind(self) -> FaultyConnection:
            if self._behind is None:
                raise sqlite3.ProgrammingError("Cannot operate on a closed database.")
            return self._behind

        def execute(self, *args: Any) -> Any:
            return self.behind.execute(*args)

        def executemany(self, *args: Any) -> Any:
            return self.behind.executemany(*args)

        def executescript(self, *args: Any) -> Any:
            return self.behind.executescript(*args)

        def cursor(self, *args: Any) -> Any:
            return self.behind.cursor(*args)

        def rollback(self) -> None:
            self.behind.rollback()

        def interrupt(self) -> None:
            self.behind.interrupt()

        def set_authorizer(self, callback: Any) -> None:
            self.behind.set_authorizer(callback)

        @property
        def in_transaction(self) -> bool:
            return self.behind.in_transaction

        @property
        def row_factory(self) -> Any:
            return self.behind.row_factory

        @row_factory.setter
        def row_factory(self, factory: Any) -> None:
            self.behind.row_factory = factory

        def close(self) -> None:
            """End its transaction, and keep the connection behind it for another handle."""
            behind, self._behind = self._behind, None
            if behind is None:
                return
            behind.clean()
            if self.is_clean:
                machine.give(behind.key, behind)
            else:
                behind.close()

    @cache
    def handles(factory: type[sqlite3.Connection]) -> Any:
        return Handle if factory is sqlite3.Connection else type("HandleOf", (Handle, factory), {})

    def connect(path: Any, *, factory: Any = sqlite3.Connection, **options: Any) -> Any:
        machine.world.before("CONNECT")  # type: ignore[union-attr]
        key = path, factory, *sorted(options)
        connection = machine.take(key)
        if connection is None:
            connection = sqlite3.connect(
                path, factory=FaultyConnection, cached_statements=512, **{**options, "timeout": 0}
            )
            connection.key = key
            register_functions(machine, connection)
            # It reads the schema here, so that a run does not depend on the runs before it.
            sqlite3.Connection.execute(connection, "SELECT 1 FROM webhook_receipts LIMIT 0").close()
        handle = handles(factory)(connection)
        machine.world.opened(handle)  # type: ignore[union-attr]
        return handle

    return SimpleNamespace(**{**vars(sqlite3), "connect": connect})
