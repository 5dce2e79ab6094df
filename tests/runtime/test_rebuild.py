"""Forks: a process runs its own inbox, also if its parent ran one at that moment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import Postgres, run_sql, sqlite_file

FORK = """
import logging, os, sys
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
from oncehook import Inbox
from tests.support.wsgi import deliver, wsgi_inbox

engine = None
if sys.argv[2] == "engine":
    from sqlalchemy import create_engine, text
    engine = create_engine(sys.argv[1].replace("postgresql:", "postgresql+psycopg:"), pool_size=1, max_overflow=0)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE ledger (note text)"))  # the pool has a connection at the fork
inbox = wsgi_inbox(sys.argv[1], worker=True, engine=engine)
inbox.consumer("audit")

@inbox.on("stripe", "*")
def handle(event, tx):
    if engine is not None:
        tx.execute(text("INSERT INTO ledger VALUES (:note)"), {"note": event.id})

@inbox.on("stripe", "*", consumer="audit")
def audit(event): ...

@inbox.effect
async def mail(effect): ...

if sys.argv[2] != "imported":
    assert deliver(inbox, "evt_before") == 202
    inherited = inbox._runtime
child = os.fork()
name = "child" if child == 0 else "parent"
statuses = [deliver(inbox, f"evt_{name}_{number}") for number in range(20)]
open(name, "w").write(repr(statuses))
if child == 0 and sys.argv[2] != "imported" and statuses[0] == 202:
    assert inbox._runtime is not inherited and not inbox._runtime.lifecycle.is_inherited
    assert {effect.name for effect in inbox._runtime.effects} >= {"mail"}
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def run_forking(folder: Path, database: str, when: str) -> tuple[str, str, str]:
    """Run FORK. Returns the statuses that child and parent got, and the log of both."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, database, when],  # of a fork with threads
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return (folder / "child").read_text(), (folder / "parent").read_text(), done.stdout


@pytest.mark.sampled(1)
@pytest.mark.parametrize("when", ["imported", "running", "engine"])
def test_forked_process_runs_its_own_inbox(postgres: Postgres, tmp_path: Path, when: str) -> None:
    database = postgres.database(migrated=True)
    child, parent, log = run_forking(tmp_path, database, when)
    assert child == parent == repr([202] * 20)
    assert log.splitlines().count("stopped") == 2, "both processes stop their inbox when they exit"
    rows = run_sql(database, "SELECT consumer, status, count(*) FROM webhook_receipts GROUP BY 1, 2 ORDER BY 1, 2")
    total = 40 if when == "imported" else 41
    assert sum(count for consumer, _, count in rows if consumer == "main") == total
    postgres.drop_later(database)


def test_process_that_was_forked_while_the_inbox_ran_refuses_sqlite(tmp_path: Path) -> None:
    child, parent, log = run_forking(tmp_path, sqlite_file(tmp_path / "inbox.db"), "running")
    assert (child, parent) == (repr([503] * 20), repr([202] * 20))
    assert "start_failed: this process was forked while the inbox ran, and SQLite cannot be used after that" in log
