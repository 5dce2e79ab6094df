"""The clock of the host jumps ahead and back while events wait: no event waits for the hour to pass."""

import shutil
import struct
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.faults.power import compile_library
from tests.support.events import stripe_body, stripe_headers
from tests.support.serve import post_stripe, process, write_config
from tests.support.servers import run_sql
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("cc") is None, reason="the clock needs a C compiler"),
    pytest.mark.skipif(not Path("/proc").exists(), reason="the clock is loaded by Linux's dynamic linker"),
]

HOOKS = """
import asyncio
from contextlib import suppress

from oncehook import Inbox

inbox = Inbox(config={config!r})


@inbox.on("stripe", "*")
async def write(event, tx):
    with suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.05)
    await tx.execute("INSERT INTO ledger (event_id) VALUES (?)", event.id)
"""
RETRYING_HOOKS = """
import struct
from pathlib import Path

from oncehook import Inbox, RetryLater

inbox = Inbox(config={config!r})


def set_clock_ahead_and_fail():
    if not Path("failed").exists():
        Path("failed").touch()
        with open("offset", "r+b") as file:
            file.write(struct.pack("<q", 3600))
        raise RetryLater("the first attempt fails", after=20)


@inbox.effect
async def send(effect):
    set_clock_ahead_and_fail()


@inbox.on("stripe", "*")
async def write(event):
    if event.id == "evt_effect":
        await event.effect("send", send)
    else:
        set_clock_ahead_and_fail()
"""
HOUR, EVENTS = 3600, 20


async def test_events_that_wait_while_the_clock_goes_back_are_handled_once_without_delay(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'inbox.db'}"
    config = write_config(tmp_path, database, "concurrency = 1")
    (tmp_path / "hooks.py").write_text(HOOKS.format(config=str(config)))
    offset = tmp_path / "offset"
    offset.write_bytes(struct.pack("<q", 0))
    clock = {"LD_PRELOAD": str(compile_library("clock.c", tmp_path)), "CLOCK_OFFSET": str(offset)}
    with process(config, app="hooks:inbox", cwd=tmp_path, **clock) as service:
        run_sql(database, "CREATE TABLE ledger (event_id TEXT)")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.port}", verify=False, timeout=30) as client:
            for jump in (HOUR, 0, -HOUR, 0):
                with offset.open("r+b") as file:
                    file.write(struct.pack("<q", jump))
                for number in range(EVENTS):
                    body = stripe_body(f"evt_{jump}_{number}_{time.monotonic()}")
                    headers = stripe_headers(body, now=time.time() + jump)
                    assert (await client.post("/webhooks/stripe", content=body, headers=headers)).status_code == 202
        assert run_sql(database, "SELECT count(*) > 10 FROM webhook_receipts WHERE status = 'received'") == [(1,)]
        unfinished = "SELECT count(*) FROM webhook_receipts WHERE status <> 'processed'"
        await eventually(lambda: run_sql(database, unfinished) == [(0,)], "every event is processed", within=60)
        assert service.end() == 0
    assert run_sql(database, "SELECT count(*), count(DISTINCT event_id) FROM ledger") == [(4 * EVENTS, 4 * EVENTS)]
    assert run_sql(database, "SELECT max(attempts) FROM webhook_receipts") == [(1,)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("event_id", ["evt_handler", "evt_effect"])
async def test_retry_that_is_scheduled_while_the_clock_is_ahead_runs_after_it_went_back(
    tmp_path: Path, event_id: str, is_restarted: bool
) -> None:
    database = f"sqlite:///{tmp_path / 'inbox.db'}"
    config = write_config(tmp_path, database, 'lease = "1.5s"')
    (tmp_path / "hooks.py").write_text(RETRYING_HOOKS.format(config=str(config)))
    offset, failed = tmp_path / "offset", tmp_path / "failed"
    offset.write_bytes(struct.pack("<q", 0))
    clock = {"LD_PRELOAD": str(compile_library("clock.c", tmp_path)), "CLOCK_OFFSET": str(offset)}

    def states() -> set[str]:
        rows = run_sql(database, "SELECT status FROM webhook_receipts UNION ALL SELECT status FROM webhook_effects")
        return {row[0] for row in rows}

    with ExitStack() as stack:
        service = stack.enter_context(process(config, app="hooks:inbox", cwd=tmp_path, **clock))
        assert post_stripe(service.port, stripe_body(event_id)).status_code == 202
        await eventually(lambda: failed.exists() and "retrying" in states(), "the first attempt failed")
        if is_restarted:
            service.kill()
        with offset.open("r+b") as file:
            file.write(struct.pack("<q", 0))
        if is_restarted:
            stack.enter_context(process(config, app="hooks:inbox", cwd=tmp_path, **clock))
        await eventually(lambda: states() <= {"processed", "done"}, "the retry succeeds", within=15)
