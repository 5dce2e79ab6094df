"""The rate of a consumer with several worker processes, counted by the server that their requests reach."""

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from oncehook import Inbox
from oncehook.testing import deliver
from tests.support.events import Rows, stripe_body
from tests.support.http_target import Behavior, Request, http_response, receiving
from tests.support.serve import worker_process, write_config
from tests.support.waiting import eventually, stays_true

# Each test starts processes: on SQLite only with --torture, as the statements are tested on both elsewhere.
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("database", [pytest.param("sqlite", marks=pytest.mark.rest), "postgres"], indirect=True),
]

RATE, EVENTS, PROCESSES = 10, 40, 3
HOOKS = """
from oncehook import Inbox

inbox = Inbox()


@inbox.on("stripe", "*")
async def handle(event): ...
"""
STATES = "SELECT consumer, status, count(*), max(attempts) FROM webhook_receipts GROUP BY 1, 2 ORDER BY 1, 2"


def recorded(arrivals: list[float]) -> Behavior:
    """Answer each request with 200, and record when it arrived."""

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        arrivals.append(time.monotonic())
        writer.write(http_response(200))
        await writer.drain()

    return answer


def consumer(name: str, url: str, *lines: str) -> list[str]:
    return [f"[consumers.{name}]", 'sources = ["stripe"]', f'forward = "{url}"', *lines]


async def test_several_processes_share_one_rate_and_leave_other_consumers_alone(
    database: str, in_folder: Path, rows: Rows
) -> None:
    slow: list[float] = []
    fast: list[float] = []
    (in_folder / "hooks.py").write_text(HOOKS)
    async with receiving(recorded(slow)) as limited, receiving(recorded(fast)) as unlimited:
        config = write_config(
            in_folder,
            database,
            *consumer("mail", limited.url, f'rate = "{RATE}/s"'),
            *consumer("search", unlimited.url),
        )
        receiver = Inbox(config=config, worker=False)
        async with receiver.lifespan():
            for number in range(EVENTS):
                await deliver(receiver, "stripe", stripe_body(f"evt_{number}"))
        with ExitStack() as processes:
            for _ in range(PROCESSES):
                await asyncio.to_thread(processes.enter_context, worker_process(in_folder))
            await eventually(lambda: len(slow) == EVENTS, "the limited consumer gets all events", within=30)
            await eventually(
                lambda: rows(STATES) == [(name, "processed", EVENTS, 1) for name in ("mail", "main", "search")],
                "each consumer processed each event at its first attempt",
            )
    seconds = (EVENTS - 2) / RATE  # the burst has two tokens
    assert seconds - 0.3 <= slow[-1] - slow[0] <= seconds * 2, "the processes must share one rate"
    most = max(sum(start <= other < start + 1 for other in slow) for start in slow)
    assert most <= RATE + 2 + 2, "in any second: the rate, the burst, and requests that were delayed on their way"
    assert len(fast) == EVENTS and fast[-1] < slow[-1], "the rate of one consumer must not slow another"


async def test_receipts_that_wait_for_a_token_are_not_leased_and_use_no_attempt(
    database: str, in_folder: Path, rows: Rows
) -> None:
    arrivals: list[float] = []
    waiting = [("mail", "processed", 1, 1), ("mail", "received", 4, 0), ("main", "processed", 5, 1)]
    (in_folder / "hooks.py").write_text(HOOKS)
    async with receiving(recorded(arrivals)) as target:
        config = write_config(in_folder, database, *consumer("mail", target.url, 'rate = "1/h"'))
        receiver = Inbox(config=config, worker=False)
        async with receiver.lifespan():
            for number in range(5):
                await deliver(receiver, "stripe", stripe_body(f"evt_{number}"))
        for _ in range(2):  # the second process finds an empty bucket
            with ExitStack() as processes:
                await asyncio.to_thread(processes.enter_context, worker_process(in_folder))
                await eventually(lambda: rows(STATES) == waiting, "one event used the only token", within=20)
                await stays_true(lambda: rows(STATES) == waiting, "the others wait without an attempt", seconds=0.5)
    assert len(arrivals) == 1
