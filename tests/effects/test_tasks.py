"""Tasks of task queues: one suite for every library, with its real client, its real worker and a real server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial

import pytest

from oncehook import Event, Inbox, SyncEvent
from oncehook.effects.effect import Effect, EffectRefused, idempotency_key
from oncehook.effects.tasks import TaskQueue
from oncehook.model.errors import SendFailed
from oncehook.testing import advance, drain, perform
from tests.support.events import Rows
from tests.support.servers import run_sql
from tests.support.task_queues import DEDUPLICATING, LIBRARIES, Library, running_library
from tests.support.waiting import eventually
from tests.support.work import QUICK, claim

pytestmark = pytest.mark.anyio

EFFECTS = "SELECT status, kind, target, key FROM webhook_effects ORDER BY id"


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Iterator[Library]:
    with running_library(request.param) as library:
        yield library


@pytest.fixture
def rows(sqlite: str) -> Rows:
    return partial(run_sql, sqlite)


@pytest.fixture
async def inbox(sqlite: str, library: Library) -> AsyncIterator[Inbox]:
    """A started inbox without a worker, whose handlers enqueue the task of the library."""
    inbox = Inbox(sqlite, worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    inbox.tasks(library.queue, timeout="3s", **library.options)

    @inbox.on("stripe", "invoice.paid")
    async def paid(event: Event) -> None:
        is_new = await event.enqueue(library.task, event.object_id, 2900, key=f"receipt:{event.object_id}")
        assert is_new == (event.id == "evt_1")

    @inbox.on("stripe", "invoice.voided", retry=QUICK)
    def voided(event: SyncEvent) -> None:
        assert event.enqueue(library.task, event.object_id, 0)
        if event.object_id == "in_rolled_back":
            raise RuntimeError("the handler fails after it enqueued the task")

    async with inbox.lifespan():
        yield inbox


def queue_of(inbox: Inbox) -> TaskQueue:
    (queue,) = inbox._runtime.effects.task_queues.values()
    return queue


async def hand_over(inbox: Inbox, library: Library, key: str, amount: int) -> None:
    """Hand a task over as the relay does, for the effect with this key."""
    queue = queue_of(inbox)
    target = f"{queue.name}:{queue.task(library.task).task.name}"
    stable = idempotency_key("effect", "stripe", key)
    effect = Effect(id=1, key=key, idempotency_key=stable, target=target, source="stripe", receipt=1, attempt=1)
    await queue.hand_over(effect, args=["in_1", amount], kwargs={})


@pytest.mark.sampled(1)
async def test_task_runs_after_the_commit_and_a_repeated_hand_over_has_the_same_id(
    inbox: Inbox, library: Library, rows: Rows
) -> None:
    await claim(inbox, "evt_1", "evt_2", object_id="in_1")
    await claim(inbox, "evt_3", type="invoice.voided", object_id="in_rolled_back")
    await claim(inbox, "evt_4", type="invoice.voided", object_id="in_4")
    drained = await drain(inbox, later=True)
    assert sum(receipt.status == "failed" for receipt in drained) == 1
    target = f"{library.name}:{queue_of(inbox).task(library.task).task.name}"
    named, by_default = "receipt:in_1", f"{target}:evt_4"
    recorded = {(key, status, kind, where) for status, kind, where, key in rows(EFFECTS)}
    assert recorded == {(key, "done", f"task:{library.name}", target) for key in (named, by_default)}

    await hand_over(inbox, library, named, 1)  # as after a crash, while the task waits
    ids = {key: idempotency_key("effect", "stripe", key) for key in (named, by_default, "last")}
    with library.worker():
        first_runs = {(ids[named], "in_1", 2900), (ids[by_default], "in_4", 0)}
        await eventually(lambda: first_runs <= set(library.done()), "the worker runs both tasks", within=60)
        await hand_over(inbox, library, named, 2)  # after the task ran
        await hand_over(inbox, library, "last", 3)
        await eventually(lambda: (ids["last"], "in_1", 3) in library.done(), "the worker runs the last", within=60)
        repeated = set() if library.name in DEDUPLICATING else {(ids[named], "in_1", 1), (ids[named], "in_1", 2)}
        await eventually(lambda: repeated <= set(library.done()), "the library runs the repeated ones", within=60)
    assert set(library.done()) == first_runs | repeated | {(ids["last"], "in_1", 3)}


@pytest.mark.sampled(2)
async def test_task_waits_for_a_server_that_is_gone_and_is_handed_over_when_it_is_back(
    inbox: Inbox, library: Library, rows: Rows
) -> None:
    library.server.kill()
    await claim(inbox, "evt_1", object_id="in_1")
    (receipt,) = await drain(inbox)
    assert receipt.status == "processed", "a server that is gone does not fail the event"
    ((status, error),) = rows("SELECT status, last_error FROM webhook_effects")
    assert status == "retrying" and error.startswith(f"SendFailed: {library.name} did not take the task")
    library.server.start()
    await advance(inbox, "1h")
    await perform(inbox)
    assert rows("SELECT status, attempts FROM webhook_effects") == [("done", 2)]


async def test_server_that_does_not_answer_is_bounded_by_the_time_limit(inbox: Inbox, library: Library) -> None:
    await hand_over(inbox, library, "first", 1)  # a connection that is open
    queue = queue_of(inbox)
    queue.seconds = 0.5
    library.server.pause()
    try:
        async with asyncio.timeout(20):
            with pytest.raises(SendFailed, match=f"{library.name} did not take the task"):
                await hand_over(inbox, library, "second", 2)
    finally:
        library.server.resume()
    queue.seconds = 10.0
    await hand_over(inbox, library, "second", 2)


@pytest.mark.sampled(3)
async def test_arguments_that_the_task_cannot_take_fail_in_the_handler(inbox: Inbox, library: Library) -> None:
    problems: list[str] = []

    @inbox.on("stripe", "customer.*")
    async def wrong(event: Event) -> None:
        for args in (("in_1",), ("in_1", 1, 2, 3), ("in_1", object())):
            with pytest.raises(EffectRefused) as raised:
                await event.enqueue(library.task, *args)
            problems.append(str(raised.value))

    await claim(inbox, "evt_1", type="customer.created")
    (receipt,) = await drain(inbox)
    assert receipt.status == "processed" and not receipt.last_error
    assert "cannot be called with these arguments" in problems[0] and "amount" in problems[0]
    assert "cannot be called with these arguments" in problems[1]
    assert problems[2].startswith("task.args[1] is a object: another process may run the effect")
