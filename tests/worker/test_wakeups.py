"""Wake-ups across processes: a notification wakes workers in other processes, and polling works without one."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest

from oncehook import ConfigurationError, Event, Inbox, RetryLater
from oncehook.config.configuration import load
from oncehook.observability.checkpoints import Checkpoint
from oncehook.operations.replay import replay
from oncehook.store.postgres.wakeups import CHANNEL
from oncehook.store.rows import Selection
from oncehook.testing import deliver
from oncehook.worker.wakeups import MIN_INTERVAL
from tests.support.events import make_claim, stripe_body, stripe_headers
from tests.support.serve import ONCEHOOK, Process, process, write_config
from tests.support.servers import Postgres, run_sql
from tests.support.signals import SIGNALS
from tests.support.waiting import eventually, let_time_pass, next_turn
from tests.support.work import FailsAtFirst, receipts_are

pytestmark = pytest.mark.anyio

NEVER = "1h"
"""A poll interval so long that only a notification can wake a worker."""

LISTENERS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'oncehook listen' "
    "AND query LIKE 'LISTEN%'"
)
HOOKS = """
from oncehook import Event, Inbox

inbox = Inbox()


@inbox.on("stripe", "*")
async def handle(event: Event) -> None: ...
"""


@pytest.fixture
def database(postgres: Postgres) -> str:
    return postgres.database(migrated=True)


@contextmanager
def worker_process(folder: Path, config: Path) -> Iterator[None]:
    (folder / "hooks.py").write_text(HOOKS)
    command = [str(ONCEHOOK), "worker", "hooks:inbox", "--config", str(config)]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder, env=dict(os.environ)
    )
    assert running.stdout is not None
    try:
        assert running.stdout.readline().startswith(b"Oncehook worker")
        yield
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
    finally:
        running.kill()
        running.wait()
        running.stdout.close()


async def post(receiver: Process, event_id: str) -> None:
    body = stripe_body(event_id)
    async with httpx.AsyncClient() as client:
        url = f"http://127.0.0.1:{receiver.port}/webhooks/stripe"
        assert (await client.post(url, content=body, headers=stripe_headers(body))).status_code == 202


async def test_a_notification_wakes_a_worker_in_another_process_even_after_its_connection_was_lost(
    tmp_path: Path, database: str
) -> None:
    config = write_config(tmp_path, database, f'poll = "{NEVER}"')
    with process(config, "--no-worker") as receiver, worker_process(tmp_path, config):
        await eventually(lambda: len(run_sql(database, LISTENERS)) == 1)
        for number in (1, 2, 3):  # the worker may find the first at its start, the others only by notification
            await post(receiver, f"evt_{number}")
            await eventually(receipts_are(database, "processed", number))
        ((before,),) = run_sql(database, LISTENERS)
        run_sql(database, f"SELECT pg_terminate_backend({before})")
        await eventually(lambda: [pid for (pid,) in run_sql(database, LISTENERS) if pid != before] != [])
        for number in (4, 5, 6):
            await post(receiver, f"evt_{number}")
            await eventually(receipts_are(database, "processed", number))


async def test_a_worker_polls_if_notifications_are_off(tmp_path: Path, database: str) -> None:
    config = write_config(tmp_path, database, 'poll = "200ms"', "notify = false")
    with process(config, "--no-worker") as receiver, worker_process(tmp_path, config):
        for number in (1, 2, 3):  # the worker may find the first at its start, the others only by polling
            await post(receiver, f"evt_{number}")
            await eventually(receipts_are(database, "processed", number))
        assert run_sql(database, LISTENERS) == []


# -- in this process ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def notifications(database: str) -> AsyncIterator[list[float]]:
    """The times at which notifications arrive while the block runs."""
    times: list[float] = []
    connection = await asyncpg.connect(database)
    await connection.add_listener(CHANNEL, lambda *_: times.append(time.monotonic()))
    yield times
    await connection.close()


@pytest.fixture
async def inbox(database: str) -> AsyncIterator[Inbox]:
    inbox = Inbox(database, worker=False, poll=NEVER)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        yield inbox


async def test_an_accepted_event_is_announced_and_a_duplicate_is_not(inbox: Inbox, database: str) -> None:
    async with notifications(database) as times:
        assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).status == 202
        await eventually(lambda: len(times) == 1)
        assert (await deliver(inbox, "stripe", stripe_body("evt_1"))).status == 200
        assert (await deliver(inbox, "stripe", stripe_body("evt_2"))).status == 202
        await eventually(lambda: len(times) == 2)


async def test_many_announcements_share_few_notifications_and_the_last_is_sent(inbox: Inbox, database: str) -> None:
    async with notifications(database) as times:
        begun = time.monotonic()
        for _ in range(50):
            last = time.monotonic()
            for _ in range(20):
                inbox._runtime.announcer.announce()
            await let_time_pass(0.005)
        await eventually(lambda: bool(times) and times[-1] >= last)
        assert len(times) <= (time.monotonic() - begun) / MIN_INTERVAL + 1


async def test_a_replay_wakes_a_worker(inbox: Inbox, database: str) -> None:
    inbox.on("stripe", "*")(_ignore)
    inbox._runtime.start_worker()
    await eventually(lambda: len(run_sql(database, LISTENERS)) == 1)
    await deliver(inbox, "stripe", stripe_body("evt_1"))
    await eventually(receipts_are(database, "processed", 1))
    for times in (1, 2):
        assert (await replay(inbox._runtime.store, Selection(receipts=(1,)))).count == 1
        again = f"SELECT count(*) FROM webhook_receipts WHERE status = 'processed' AND replays = {times}"
        await eventually(lambda again=again: run_sql(database, again) == [(1,)])  # type: ignore[misc]


async def _ignore(event: Event) -> None: ...


async def test_immediate_retries_and_released_receipts_are_announced(inbox: Inbox, database: str) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    @inbox.on("stripe", "*")
    async def handle(event: Event) -> None:
        if event.id == "evt_0" and event.attempt == 1:
            raise RetryLater("again", after=0)
        if event.id != "evt_0":
            started.set()
            await go_on.wait()

    async with notifications(database) as times:
        await inbox._runtime.store.claims.insert([make_claim("evt_0")])
        inbox._runtime.start_worker()
        await eventually(lambda: len(times) == 1)
        await eventually(receipts_are(database, "processed", 1))
        await inbox._runtime.store.claims.insert([make_claim(f"evt_{n}") for n in range(1, 60)])
        inbox._runtime.worker.wake()  # type: ignore[union-attr]
        await asyncio.wait_for(started.wait(), 20)
        assert len(times) == 1
        stopping = asyncio.create_task(inbox._runtime.worker.stop())  # type: ignore[union-attr]
        await next_turn()
        go_on.set()
        await stopping
        await eventually(lambda: len(times) == 2)


async def test_the_listener_reconnects_and_logs_a_lost_connection_once(
    inbox: Inbox, database: str, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    name = database.rpartition("/")[2]
    inbox._runtime.start_worker()
    await eventually(lambda: len(run_sql(database, LISTENERS)) == 1)
    postgres.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    try:
        postgres.sql(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}' "
            f"AND application_name = 'oncehook listen'"
        )
        await eventually(
            lambda: any(vars(record).get("event") == "wakeup_connection_lost" for record in caplog.records)
        )
        await let_time_pass(0.5)  # several attempts to reconnect
    finally:
        postgres.sql(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    await eventually(lambda: len(run_sql(database, LISTENERS)) == 1)
    assert sum(vars(record).get("event") == "wakeup_connection_lost" for record in caplog.records) == 1


async def test_a_second_process_on_sqlite_polls(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'inbox.db'}"
    receiver = Inbox(database, worker=False)
    worker = Inbox(database, worker=False, poll="50ms")
    for inbox in (receiver, worker):
        inbox.source("stripe", secrets=["whsec_test"])
    worker.on("stripe", "*")(_ignore)
    async with receiver.lifespan(), worker.lifespan():
        worker._runtime.start_worker()
        for number in (1, 2, 3):
            # The end of an event wakes the worker too. Only a worker that polls looks this often without an event.
            await SIGNALS.wait_for(Checkpoint.WORKER_IDLE, 5, within=15)
            await deliver(receiver, "stripe", stripe_body(f"evt_{number}"))
            await eventually(receipts_are(database, "processed", number))


async def test_a_failed_notification_is_logged_and_the_next_one_is_sent(
    inbox: Inbox, database: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wakeups = inbox._runtime.store.wakeups
    monkeypatch.setattr(wakeups, "notify", FailsAtFirst(wakeups.notify, times=1))
    async with notifications(database) as times:
        inbox._runtime.announcer.announce()
        await eventually(lambda: any(vars(record).get("loop") == "notify" for record in caplog.records))
        inbox._runtime.announcer.announce()
        await eventually(lambda: len(times) == 1, "the next announcement is sent")


def test_the_settings_for_wakeups_are_read_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEHOOK_NOTIFY", "false")
    monkeypatch.setenv("ONCEHOOK_POLL", "250ms")
    monkeypatch.setenv("ONCEHOOK_POOLER", "transaction")
    settings = load().settings
    assert (settings.notify, settings.poll, settings.pooler) == (False, 0.25, "transaction")
    monkeypatch.setenv("ONCEHOOK_POOLER", "sometimes")
    with pytest.raises(ConfigurationError, match="ONCEHOOK_POOLER"):
        load()
