"""Users' functions of every shape are run to their end, within their time, and never take more than their own call."""

import asyncio
import functools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from sqlalchemy import create_engine, text

from oncehook import ConfigurationError, Effect, Event, Inbox, Retry
from oncehook.concurrency import calling
from oncehook.concurrency.calling import GeneratorReturned, ProcessExit, Threads, call, error_summary, name_of
from oncehook.handlers.registry import Handler
from oncehook.model.retry import Postpone
from oncehook.observability import signals
from oncehook.store.postgres import heartbeat as postgres_heartbeat
from oncehook.worker.heartbeat import Heartbeat
from oncehook.worker.rescue import keep_rescuing
from tests.support.events import Rows
from tests.support.serve import write_config
from tests.support.waiting import eventually
from tests.support.work import QUICK, claim

pytestmark = pytest.mark.anyio

STATES = "SELECT event_id, status, attempts, last_error FROM webhook_receipts ORDER BY event_id"
EFFECTS = "SELECT key, status, attempts, last_error FROM webhook_effects ORDER BY key"


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox], rows: Rows) -> AsyncIterator[Inbox]:
    """A started inbox without a worker yet, with two places, and a table that handlers write to."""
    inbox = make_inbox(worker=False, lease="2s", concurrency=2)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        rows("CREATE TABLE ledger (note TEXT)")
        yield inbox


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Every line that is written."""
    lines: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(signals, "emit", lambda line, **fields: lines.append((line, fields)))
    return lines


def all_are(rows: Rows, table: str, status: str, count: int) -> Callable[[], bool]:
    return lambda: rows(f"SELECT count(*) FROM {table} WHERE status = '{status}'") == [(count,)]


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return wrapper


def partial(function: Callable[..., Any]) -> Callable[..., Any]:
    return functools.partial(wrapped(function))


def as_object(function: Callable[..., Any]) -> Callable[..., Any]:
    class Callee:
        async def __call__(self, event: Any, given: Any) -> Any:
            return await function(event, given)

    return Callee()


def as_lambda(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda event, given: function(event, given)


def in_a_loop_of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return asyncio.run(function(*args, **named))

    return wrapper


SHAPES = [wrapped, partial, as_object, as_lambda, in_a_loop_of_its_own]


# -- every shape runs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_a_handler_gives_to_await_is_awaited(
    inbox: Inbox, rows: Rows, shape: Callable[[Any], Any], database: str
) -> None:
    insert = f"INSERT INTO ledger (note) VALUES ({'$1' if database.startswith('postgresql') else '?'})"

    async def handle(event: Event, tx: Any) -> None:
        await asyncio.sleep(0.01)
        async with tx.transaction():
            await tx.execute(insert, event.id)

    inbox.on("stripe", "*", retry=Retry(attempts=1))(shape(handle))
    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: rows(STATES)[0][1] in ("processed", "failed"))
    assert rows(STATES) == [("evt_1", "processed", 1, None)]
    assert rows("SELECT note FROM ledger") == [("evt_1",)]


@pytest.mark.parametrize("shape", SHAPES)
async def test_whatever_an_effect_or_a_fetcher_gives_to_await_is_awaited(
    inbox: Inbox, rows: Rows, shape: Callable[[Any], Any]
) -> None:
    sent: list[str] = []

    async def send(effect: Effect, given: str) -> None:
        await asyncio.sleep(0.01)
        sent.append(given)

    async def fetch(event: Event, _: Any = None) -> str:
        await asyncio.sleep(0.01)
        return "paid"

    inbox.effect(name="send", retry=Retry(attempts=1))(shape(send))
    inbox.canonical("stripe", functools.partial(shape(fetch), given=None) if shape in (as_object, as_lambda) else fetch)

    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def handle(event: Event) -> None:
        await event.effect("send", "send", given=await event.canonical())

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(lambda: bool(rows(EFFECTS)) and rows(EFFECTS)[0][1] in ("done", "failed"))
    assert rows(EFFECTS) == [("send", "done", 1, None)] and sent == ["paid"]


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_synchronous_session_in_the_loop_fails_and_stops_nothing(
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
        await eventually(all_are(rows, "webhook_receipts", "failed", 1))
    assert "a synchronous session was used in the event loop" in rows(STATES)[0][3]


async def test_an_argument_may_have_any_name() -> None:
    names = {"who": 1, "function": 2, "threads": 3, "seconds": 4, "args": 5, "named": 6, "func": 7, "self": 8}

    async def asynchronous(**given: int) -> dict[str, int]:
        return given

    for function in (asynchronous, wrapped(asynchronous), dict):
        assert await call("it", function, Threads(1, "test"), 5.0, **names) == names


async def test_what_is_awaited_counts_to_the_same_time() -> None:
    async def hang() -> None:
        await asyncio.sleep(60)

    with pytest.raises(TimeoutError, match=r"it did not end within 0\.1 s"):
        await call("it", wrapped(hang), Threads(1, "test"), 0.1)


async def test_a_generator_is_refused_where_it_is_registered_and_where_it_is_given(inbox: Inbox) -> None:
    def plain(event: Event) -> Any:
        yield

    async def asynchronous(event: Event) -> Any:
        yield

    for function in (plain, asynchronous, functools.partial(plain)):
        with pytest.raises(ConfigurationError, match="has a `yield`"):
            inbox.on("stripe", "*")(function)
        with pytest.raises(ConfigurationError, match="has a `yield`"):
            inbox.effect(name="send")(function)
        with pytest.raises(ConfigurationError, match="has a `yield`"):
            inbox.canonical("stripe", function)
        with pytest.raises(GeneratorReturned):
            await call("it", wrapped(function), Threads(1, "test"), 5.0, None)


# -- names, and what is refused -------------------------------------------------------------------------------------


class Callee:
    async def __call__(self, event: Event) -> None: ...


async def plain(event: Event, *, extra: int = 0) -> None: ...


def test_whatever_can_be_called_has_a_name() -> None:
    assert name_of(functools.partial(functools.partial(plain), extra=1)) == f"{__name__}.plain"
    assert name_of(Callee()) == f"{__name__}.Callee"
    for function in (functools.partial(plain, extra=1), Callee()):
        handler = Handler(source="stripe", pattern="*", function=function, retry=Retry(), timeout=1.0)
        assert handler.name.startswith(__name__) and handler.is_async and not handler.takes_tx


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0}, {"batch": -1}, {"batch": 1.5}, {"batch": True}, {"timeout": "0s"}, {"timeout": -1},
        {"timeout": "soon"}, {"retry": 5}, {"retry": 0}, {"once_per": ()}, {"once_per": ""}, {"once_per": ["id", ""]},
    ],
)  # fmt: skip
async def test_options_that_cannot_be_meant_are_refused(make_inbox: Callable[..., Inbox], wrong: Any) -> None:
    inbox = make_inbox()
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        inbox.on("stripe", "*", **wrong)(plain)
    if "batch" not in wrong and "once_per" not in wrong:
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            inbox.effect(**wrong)(plain)


def test_a_handler_is_called_with_positions() -> None:
    def keyword(event: Event, *, tx: Any) -> None: ...

    def three(event: Event, tx: Any, x: int = 1) -> None: ...

    def named(**named: Any) -> None: ...

    def anything(*args: Any, **named: Any) -> None: ...

    for function, sentence in (
        (keyword, "requires the keyword argument 'tx'"),
        (three, "not 3 arguments"),
        (named, "not 0 arguments"),
        (anything, "functools.wraps"),
        (5, "cannot be called"),
        ({}.update, "has no signature"),
    ):
        with pytest.raises(ConfigurationError, match=sentence):
            Handler(source="stripe", pattern="*", function=function, retry=Retry(), timeout=1.0)  # type: ignore[arg-type]


def test_an_effect_without_a_name_asks_for_one(make_inbox: Callable[..., Inbox]) -> None:
    with pytest.raises(ConfigurationError, match="name="):
        make_inbox().effect(functools.partial(plain))


# -- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain", "wrapped"])
async def test_an_exit_is_the_failure_of_its_event(inbox: Inbox, rows: Rows, kind: str) -> None:
    def leave(*_: Any) -> None:
        sys.exit("bye")

    async def handle(event: Event) -> None:
        sys.exit("bye")

    def handle_plain(event: Event) -> None:
        sys.exit("bye")

    shapes = {"async": handle, "plain": handle_plain, "wrapped": wrapped(handle)}
    inbox.on("stripe", "exit", retry=Retry(attempts=1))(shapes[kind])
    inbox.effect(name="send", retry=Retry(attempts=1))(leave)

    @inbox.on("stripe", "ask")
    async def ask(event: Event) -> None:
        await event.effect("send", "send")

    await claim(inbox, "evt_1", type="exit")
    await claim(inbox, "evt_2", type="ask")
    inbox._runtime.start_worker()
    await eventually(all_are(rows, "webhook_effects", "failed", 1))
    await eventually(all_are(rows, "webhook_receipts", "failed", 1))
    assert rows(STATES)[0] == ("evt_1", "failed", 1, "ProcessExit: SystemExit: bye")
    assert rows(EFFECTS) == [("send", "failed", 1, "ProcessExit: SystemExit: bye")]


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


async def test_of_an_effects_error_only_the_first_line_is_kept(inbox: Inbox, rows: Rows) -> None:
    @inbox.effect(retry=Retry(attempts=1))
    async def send(effect: Effect, number: int) -> None:
        raise Unspeakable if number else ValueError("refused\nDETAIL: ada@example.com")

    @inbox.on("stripe", "*")
    async def ask(event: Event) -> None:
        await event.effect("1", send, number=0)
        await event.effect("2", send, number=1)

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(all_are(rows, "webhook_effects", "failed", 2))
    assert rows(EFFECTS) == [("1", "failed", 1, "ValueError: refused"), ("2", "failed", 1, "Unspeakable: ")]


async def test_of_a_fetchers_error_only_the_first_line_is_kept(inbox: Inbox, rows: Rows) -> None:
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
    await eventually(all_are(rows, "webhook_receipts", "failed", 1))
    assert "refused" in rows(STATES)[0][3] and "ada" not in rows(STATES)[0][3]


async def test_a_cause_is_left_to_its_error() -> None:
    async def fail() -> None:
        raise ValueError("a") from KeyError("b")

    for function in (fail, wrapped(fail)):
        with pytest.raises(ValueError, match="a") as raised:
            await call("it", function, Threads(1, "test"), 5.0)
        assert isinstance(raised.value.__cause__, KeyError)
    assert error_summary(ProcessExit("x\ny")) == "ProcessExit: x"


# -- threads that hang ----------------------------------------------------------------------------------------------


async def test_hanging_functions_take_no_ones_place(inbox: Inbox, rows: Rows) -> None:
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
    def handle(event: Event) -> None:
        hang(event.id)

    @inbox.on("stripe", "ask")
    async def ask(event: Event) -> None:
        await event.effect(event.id, send, name=event.id)

    try:
        await claim(inbox, "hang1", "hang2", type="plain")
        await claim(inbox, "hang3", "hang4", type="ask")
        inbox._runtime.start_worker()
        await eventually(all_are(rows, "webhook_receipts", "failed", 2))
        await eventually(all_are(rows, "webhook_effects", "failed", 2))
        await claim(inbox, "ok1", "ok2", "ok3", type="plain")
        await claim(inbox, "ok4", "ok5", "ok6", type="ask")
        await eventually(all_are(rows, "webhook_receipts", "processed", 8))
        await eventually(all_are(rows, "webhook_effects", "done", 3))
    finally:
        go.set()
    assert len(called) == len(set(called)) == 10


async def test_what_found_no_thread_goes_back_and_uses_no_attempt(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "RETRY_SECONDS", 0.5)
    go = threading.Event()

    @inbox.effect(timeout="0.1s", retry=Retry(attempts=1))
    def send(effect: Effect, hangs: bool) -> None:
        if hangs:
            go.wait(60)

    @inbox.on("stripe", "hang", timeout="0.1s", retry=Retry(attempts=1))
    def hang(event: Event) -> None:
        go.wait(60)

    @inbox.on("stripe", "ok", retry=Retry(attempts=1))
    def fine(event: Event) -> None: ...

    @inbox.on("stripe", "ask")
    async def ask(event: Event) -> None:
        await event.effect(event.id, send, hangs=event.id.startswith("hang"))

    hanging = [f"hang{n}" for n in range(8)]
    try:
        inbox._runtime.start_worker()
        assert inbox._runtime.processor is not None and inbox._runtime.relay is not None
        inbox._runtime.processor.threads.patience = inbox._runtime.relay._threads.patience = 0.3
        await claim(inbox, *hanging, type="hang")
        await claim(inbox, *(f"{name}-asks" for name in hanging), type="ask")
        await eventually(all_are(rows, "webhook_receipts", "failed", 8))
        await eventually(all_are(rows, "webhook_effects", "failed", 8))
        await claim(inbox, "ok", type="ok")
        await claim(inbox, "ok-asks", type="ask")
        put_back = "SELECT count(*) FROM {} WHERE attempts = 0 AND next_attempt_at IS NOT NULL"
        await eventually(lambda: rows(put_back.format("webhook_receipts")) == [(1,)])
        await eventually(lambda: rows(put_back.format("webhook_effects")) == [(1,)])
    finally:
        go.set()
    await eventually(all_are(rows, "webhook_receipts", "processed", 10))
    await eventually(all_are(rows, "webhook_effects", "done", 1))
    assert ("ok", "processed", 1, None) in rows(STATES) and ("ok-asks", "done", 1, None) in rows(EFFECTS)


async def test_the_time_counts_from_the_beginning() -> None:
    threads = Threads(1, "test")

    def slow() -> None:
        time.sleep(0.3)

    await asyncio.gather(*(call("it", slow, threads, 0.9) for _ in range(5)))


async def test_places_are_all_there_again_when_late_threads_have_ended() -> None:
    go, threads = threading.Event(), Threads(1, "test", patience=0.2)
    for _ in range(4):
        with pytest.raises(TimeoutError):
            await call("it", lambda: go.wait(60), threads, 0.05)
    with pytest.raises(Postpone):
        await call("it", lambda: None, threads, 5.0)
    go.set()
    threads.patience = 30.0
    for _ in range(6):
        await call("it", lambda: None, threads, 5.0)
    await eventually(lambda: threads._abandoned == 0)
    assert threads._free._value == 1


HOOKS = """
import time
from oncehook import Inbox

inbox = Inbox()


@inbox.on("stripe", "*", timeout="1s")
def hang(event):
    print("in", flush=True)
    while True:
        time.sleep(1)
"""


async def test_a_process_ends_although_a_plain_function_hangs(
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
                assert line, "it ended"
            worker.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.wait, 45) == 0
        finally:
            worker.kill()


# -- what goes on in the background goes on -------------------------------------------------------------------------


class Failing:
    """A verb of the store that fails at first, as nobody expected, and then is itself again."""

    def __init__(self, verb: Callable[..., Any], times: int = 2) -> None:
        self.verb = verb
        self.times = times

    async def __call__(self, *args: Any, **named: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise LookupError("a bug")
        return await self.verb(*args, **named)


async def test_the_loops_of_worker_and_relay_survive_a_bug(
    inbox: Inbox, rows: Rows, emitted: list[tuple[str, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, effects = inbox._runtime.store, inbox._runtime.store.effects
    verbs = (
        (store.leases, "take"),
        (store.leases, "expired"),
        (store.wakeups, "listen"),
        (effects, "lease"),
        (effects, "expired"),
    )
    for owner, verb in verbs:
        monkeypatch.setattr(owner, verb, Failing(getattr(owner, verb)))

    @inbox.effect
    def send(effect: Effect) -> None: ...

    @inbox.on("stripe", "*", retry=QUICK)
    async def ask(event: Event) -> None:
        await event.effect(event.id, send)

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(all_are(rows, "webhook_effects", "done", 1))
    told = [fields["loop"] for line, fields in emitted if line == "background_failed"]
    assert {"worker", "relay", "relay rescue", "listen"} <= set(told)
    rescuing = asyncio.create_task(
        keep_rescuing(inbox._runtime.store, inbox._runtime.handlers, inbox._runtime.sources, 0.05)
    )
    expired = inbox._runtime.store.leases.expired
    await eventually(lambda: expired.times < 0)  # type: ignore[attr-defined]
    assert not rescuing.done()
    rescuing.cancel()
    assert {"loop": "rescue", "error": "LookupError"}.items() <= next(
        fields for line, fields in emitted if fields.get("loop") == "rescue"
    ).items()


async def test_an_effect_that_could_not_be_marked_for_a_bug_keeps_no_place(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox._runtime.store.effects, "settle", Failing(inbox._runtime.store.effects.settle))

    @inbox.effect
    def send(effect: Effect) -> None: ...

    @inbox.on("stripe", "*")
    async def ask(event: Event) -> None:
        await event.effect(event.id, send)

    await claim(inbox, *"abcde")
    inbox._runtime.start_worker()
    await eventually(lambda: rows("SELECT count(*) FROM webhook_effects WHERE status = 'done'")[0][0] >= 1)
    assert inbox._runtime.relay is not None
    relay = inbox._runtime.relay
    await eventually(lambda: not relay._running)


def test_the_heartbeat_survives_whatever_its_store_raises(emitted: list[tuple[str, dict[str, Any]]]) -> None:
    class Heart:
        beats = 0

        def extend(self, held: Any, seconds: float) -> None:
            self.beats += 1
            if self.beats < 3:
                raise LookupError("a bug")

        def close(self) -> None: ...

    heart = Heart()
    heartbeat = Heartbeat(heart, 0.06)
    heartbeat.hold((1, 1))
    heartbeat.start()
    deadline = time.monotonic() + 30
    while heart.beats < 4:
        assert time.monotonic() < deadline and heartbeat._thread.is_alive()
        time.sleep(0.01)
    heartbeat.stop()
    assert emitted == [("heartbeat_failed", {"held": 1, "detail": "LookupError"})] * 2


@pytest.mark.parametrize("database", ["postgres"], indirect=True)
async def test_a_lease_outlives_a_goodbye_at_the_wrong_moment(
    inbox: Inbox, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat, calls = postgres_heartbeat.PostgresHeartbeatConnection._execute, 0

    async def once(self: Any, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise asyncpg.exceptions.ProtocolError("the server said goodbye")
        await beat(self, *args)

    monkeypatch.setattr(postgres_heartbeat.PostgresHeartbeatConnection, "_execute", once)

    @inbox.on("stripe", "*")
    async def slow(event: Event) -> None:
        await eventually(lambda: calls > 4)

    await claim(inbox, "evt_1")
    inbox._runtime.start_worker()
    await eventually(all_are(rows, "webhook_receipts", "processed", 1))
    assert rows(STATES) == [("evt_1", "processed", 1, None)]
