"""User functions of every shape, in handlers, effects and canonical fetchers."""

import asyncio
import functools
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from oncehook import Effect, Event, Inbox, Retry, SyncEvent
from oncehook.concurrency import calling
from tests.support.events import Rows
from tests.support.registration import wrapped
from tests.support.serve import write_config
from tests.support.waiting import eventually, next_turn
from tests.support.work import claim, effects_are, receipts_are

pytestmark = pytest.mark.anyio


STATES = "SELECT event_id, status, attempts, last_error FROM webhook_receipts ORDER BY event_id"


EFFECTS = "SELECT key, status, attempts, last_error FROM webhook_effects ORDER BY key"


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], rows: Rows) -> AsyncIterator[Inbox]:
    """A started inbox without a worker, with two slots, and a table that handlers write to."""
    inbox = make_inbox(worker=False, lease="2s", concurrency=2)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE ledger (note TEXT)")
        yield inbox


def partial(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.partial(wrapped(function))


def as_object(function: Callable[..., Any]) -> Callable[..., Any]:
    class Callee:
        async def __call__(self, event: Any, argument: Any) -> Any:
            return await function(event, argument)

    return Callee()


def as_lambda(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda event, argument: function(event, argument)


def in_another_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(function(*args, **kwargs))

    return wrapper


SHAPES = [wrapped, partial, as_object, as_lambda, in_another_loop]


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_worker_awaits_every_awaitable_that_a_handler_returns(
    inbox: Inbox, rows: Rows, shape: Callable[[Any], Any], database: str
) -> None:
    insert = f"INSERT INTO ledger (note) VALUES ({'$1' if database.startswith('postgresql') else '?'})"

    async def handle(event: Event, tx: Any) -> None:
        await next_turn()
        async with tx.transaction():
            await tx.execute(insert, event.id)

    inbox.on("stripe", "*", retry=Retry(attempts=1))(shape(handle))
    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows(STATES)[0][1] in ("processed", "failed"))
    assert rows(STATES) == [("evt_1", "processed", 1, None)]
    assert rows("SELECT note FROM ledger") == [("evt_1",)]


@pytest.mark.parametrize("shape", SHAPES)
async def test_the_relay_awaits_every_awaitable_of_an_effect_or_fetcher(
    inbox: Inbox, rows: Rows, shape: Callable[[Any], Any]
) -> None:
    sent: list[str] = []

    async def send(effect: Effect, argument: str) -> None:
        await next_turn()
        sent.append(argument)

    async def fetch(event: Event, _: Any = None) -> str:
        await next_turn()
        return "paid"

    inbox.effect(name="send", retry=Retry(attempts=1))(shape(send))
    inbox.canonical(
        "stripe", functools.partial(shape(fetch), argument=None) if shape in (as_object, as_lambda) else fetch
    )

    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def handle(event: Event) -> None:
        await event.effect("send", "send", argument=await event.canonical())

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: bool(rows(EFFECTS)) and rows(EFFECTS)[0][1] in ("done", "failed"))
    assert rows(EFFECTS) == [("send", "done", 1, None)] and sent == ["paid"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_synchronous_session_in_the_event_loop_fails_only_its_event(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(engine=create_engine(database))
    inbox.source("stripe", secrets=["whsec_test"])

    async def handle(event: Event, session: Any) -> None:
        session.execute(text("SELECT 1"))

    inbox.on("stripe", "*", retry=Retry(attempts=1))(as_lambda(handle))
    async with inbox.lifespan():
        await claim(inbox, "evt_1")
        inbox._runtime.start_worker()
        await eventually(receipts_are(rows, "failed", 1))
    assert "a synchronous session was used in the event loop" in rows(STATES)[0][3]


@pytest.mark.parametrize("kind", ["async", "plain", "wrapped"])
async def test_sys_exit_in_user_code_fails_only_its_event_or_effect(inbox: Inbox, rows: Rows, kind: str) -> None:
    def leave(*_: Any) -> None:
        sys.exit("bye")

    async def handle(event: Event) -> None:
        sys.exit("bye")

    def handle_plain(event: SyncEvent) -> None:
        sys.exit("bye")

    shapes: dict[str, Callable[..., Any]] = {"async": handle, "plain": handle_plain, "wrapped": wrapped(handle)}
    inbox.on("stripe", "exit", retry=Retry(attempts=1))(shapes[kind])
    inbox.effect(name="send", retry=Retry(attempts=1))(leave)

    @inbox.on("stripe", "ask")
    async def request(event: Event) -> None:
        await event.effect("send", "send")

    await claim(inbox, "evt_1", type="exit")
    await claim(inbox, "evt_2", type="ask")
    inbox._runtime.start_worker()
    await eventually(effects_are(rows, "failed", 1))
    await eventually(receipts_are(rows, "failed", 1))
    assert rows(STATES)[0] == ("evt_1", "failed", 1, "ProcessExit: SystemExit: bye")
    assert rows(EFFECTS) == [("send", "failed", 1, "ProcessExit: SystemExit: bye")]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


async def test_an_effect_records_only_the_first_line_of_its_error(inbox: Inbox, rows: Rows) -> None:
    @inbox.effect(retry=Retry(attempts=1))
    async def send(effect: Effect, number: int) -> None:
        raise Unspeakable if number else ValueError("refused\nDETAIL: ada@example.com")

    @inbox.on("stripe", "*")
    async def request(event: Event) -> None:
        await event.effect("1", send, number=0)
        await event.effect("2", send, number=1)

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(effects_are(rows, "failed", 2))
    assert rows(EFFECTS) == [("1", "failed", 1, "ValueError: refused"), ("2", "failed", 1, "Unspeakable: ")]


async def test_a_canonical_fetch_reports_only_the_first_line_of_its_error(inbox: Inbox, rows: Rows) -> None:
    @inbox.canonical("stripe")
    def fetch(event: Event) -> None:
        raise ValueError("refused\nDETAIL: ada@example.com")

    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def handle(event: Event) -> None:
        try:
            await event.canonical()
        except Exception as error:
            assert "ada" not in str(error) and "ValueError: refused" in str(error)
            raise

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(receipts_are(rows, "failed", 1))
    assert "refused" in rows(STATES)[0][3] and "ada" not in rows(STATES)[0][3]


async def test_hanging_functions_free_their_slots_for_other_events(inbox: Inbox, rows: Rows) -> None:
    go = threading.Event()
    called: list[str] = []

    def hang(name: str) -> None:
        called.append(name)
        if name.startswith("hang"):
            go.wait(60)

    @inbox.effect(timeout="0.3s", retry=Retry(attempts=1))
    def send(effect: Effect, name: str) -> None:
        hang(f"{name}:effect")

    @inbox.on("stripe", "plain", timeout="0.3s", retry=Retry(attempts=1))
    def handle(event: SyncEvent) -> None:
        hang(event.id)

    @inbox.on("stripe", "ask")
    async def request(event: Event) -> None:
        await event.effect(event.id, send, name=event.id)

    try:
        await claim(inbox, "hang1", "hang2", type="plain")
        await claim(inbox, "hang3", "hang4", type="ask")
        inbox._runtime.start_worker()
        await eventually(receipts_are(rows, "failed", 2))
        await eventually(effects_are(rows, "failed", 2))
        await claim(inbox, "ok1", "ok2", "ok3", type="plain")
        await claim(inbox, "ok4", "ok5", "ok6", type="ask")
        await eventually(receipts_are(rows, "processed", 8))
        await eventually(effects_are(rows, "done", 3))
    finally:
        go.set()
    assert len(called) == len(set(called)) == 10


async def test_receipt_is_released_without_an_attempt_when_no_thread_is_free(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "RETRY_SECONDS", 0.5)
    go = threading.Event()

    @inbox.effect(timeout="0.1s", retry=Retry(attempts=1))
    def send(effect: Effect, hangs: bool) -> None:
        if hangs:
            go.wait(60)

    @inbox.on("stripe", "hang", timeout="0.1s", retry=Retry(attempts=1))
    def hang(event: SyncEvent) -> None:
        go.wait(60)

    @inbox.on("stripe", "ok", retry=Retry(attempts=1))
    def fine(event: SyncEvent) -> None: ...

    @inbox.on("stripe", "ask")
    async def request(event: Event) -> None:
        await event.effect(event.id, send, hangs=event.id.startswith("hang"))

    hanging = [f"hang{n}" for n in range(8)]
    try:
        inbox._runtime.start_worker()
        assert inbox._runtime.processor is not None and inbox._runtime.relay is not None
        inbox._runtime.processor.threads_of("main").patience = inbox._runtime.relay._threads.patience = 0.3
        await claim(inbox, *hanging, type="hang")
        await claim(inbox, *(f"{name}-asks" for name in hanging), type="ask")
        await eventually(receipts_are(rows, "failed", 8))
        await eventually(effects_are(rows, "failed", 8))
        await claim(inbox, "ok", type="ok")
        await claim(inbox, "ok-asks", type="ask")
        released = "SELECT count(*) FROM {} WHERE attempts = 0 AND next_attempt_at IS NOT NULL"
        await eventually(lambda: rows(released.format("webhook_receipts")) == [(1,)])
        await eventually(lambda: rows(released.format("webhook_effects")) == [(1,)])
    finally:
        go.set()
    await eventually(receipts_are(rows, "processed", 10))
    await eventually(effects_are(rows, "done", 1))
    assert ("ok", "processed", 1, None) in rows(STATES) and ("ok-asks", "done", 1, None) in rows(EFFECTS)


HOOKS = """
import threading
from oncehook import Inbox

inbox = Inbox()


@inbox.on("stripe", "*", timeout="1s")
def hang(event):
    print("in", flush=True)
    threading.Event().wait()
"""


async def test_a_worker_process_stops_while_a_plain_function_hangs(
    tmp_path: Path, make_inbox: Callable[..., Inbox], database: str
) -> None:
    config = write_config(tmp_path, database)
    (tmp_path / "hooks.py").write_text(HOOKS)
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        await claim(inbox, "evt_1")
    command = [sys.executable, "-m", "oncehook", "worker", "hooks:inbox", "--config", str(config)]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as worker:
        try:
            assert worker.stdout is not None
            while (line := await asyncio.to_thread(worker.stdout.readline)) != "in\n":
                assert line, "the worker process ended before its handler ran"
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait, 45) == 0
        finally:
            worker.kill()
