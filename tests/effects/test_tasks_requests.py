"""Requests of tasks: which queue takes them, which requests a handler refuses, and how commands and pages show them."""

from collections.abc import AsyncIterator, Callable

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from oncehook import Event, Inbox
from oncehook.effects.effect import EffectRefused, idempotency_key
from oncehook.effects.tasks import TaskQueue
from oncehook.http_client import circuit_breaker
from oncehook.model.errors import ConfigurationError
from oncehook.observability import signals
from oncehook.testing import drain
from tests.support.events import Rows
from tests.support.work import claim

pytestmark = pytest.mark.anyio


def make_broker() -> StubBroker:
    broker = StubBroker()

    @dramatiq.actor(broker=broker, actor_name="send")
    def send(invoice: str, total: int = 0) -> None: ...

    return broker


@pytest.fixture
def broker() -> StubBroker:
    return make_broker()


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        yield inbox


def messages(broker: StubBroker) -> list[dramatiq.Message[None]]:
    queue = broker.queues["default"]
    return [dramatiq.Message.decode(queue.get_nowait()) for _ in range(queue.qsize())]


async def refusals(inbox: Inbox, *calls: Callable[[Event], object]) -> list[str]:
    """The messages that a handler gets for calls that cannot be recorded."""
    problems: list[str] = []

    @inbox.on("stripe", "*")
    async def handler(event: Event) -> None:
        for call in calls:
            with pytest.raises(EffectRefused) as raised:
                call(event)
            problems.append(str(raised.value))

    await claim(inbox, "evt_1")
    (receipt,) = await drain(inbox)
    assert receipt.status == "processed", receipt.last_error
    return problems


async def test_arguments_arrive_as_they_were_recorded(inbox: Inbox, broker: StubBroker, rows: Rows) -> None:
    inbox.tasks(broker)

    @inbox.on("stripe", "*")
    async def handler(event: Event) -> None:
        assert await event.enqueue(broker.get_actor("send"), "in_1", total=2900)
        assert not await event.enqueue("send", "in_1", total=2900), "the same task of the same event"
        assert await event.enqueue("send", "in_2", key="second", scope="shop")

    await claim(inbox, "evt_1")
    await drain(inbox)
    arrived = {message.message_id: (message.args, message.kwargs) for message in messages(broker)}
    assert arrived == {
        idempotency_key("effect", "stripe", "dramatiq:send:evt_1"): (("in_1",), {"total": 2900}),
        idempotency_key("effect", "shop", "second"): (("in_2",), {}),
    }
    assert rows("SELECT count(*) FROM webhook_effects WHERE status = 'done'") == [(2,)]


async def test_handler_that_enqueues_a_task_twice_must_choose_keys(inbox: Inbox, broker: StubBroker) -> None:
    inbox.tasks(broker)

    @inbox.on("stripe", "*")
    async def handler(event: Event) -> None:
        await event.enqueue("send", "in_1")
        await event.enqueue("send", "in_2")

    await claim(inbox, "evt_1")
    (receipt,) = await drain(inbox)
    assert "two different effects with the key 'dramatiq:send:evt_1'" in (receipt.last_error or "")
    assert messages(broker) == []


async def test_task_without_a_queue_is_refused_with_what_to_do(inbox: Inbox, broker: StubBroker) -> None:
    (problem,) = await refusals(inbox, lambda event: event.enqueue(broker.get_actor("send"), "in_1"))
    assert problem.startswith("no task queue is registered: call inbox.tasks(…) with a Celery app")


async def test_what_cannot_be_enqueued_is_named(inbox: Inbox, broker: StubBroker) -> None:
    other = make_broker()
    inbox.tasks(broker)
    foreign = TaskQueue("dramatiq", next(iter(inbox._runtime.effects.task_queues.values())).adapter, 1.0)
    problems = await refusals(
        inbox,
        lambda event: event.enqueue(other.get_actor("send"), "in_1"),
        lambda event: event.enqueue("unknown", "in_1"),
        lambda event: event.enqueue(7),
        lambda event: event.enqueue("send", {1, 2}),
        lambda event: event.enqueue("send", invoice="in_1", amount=1),
        lambda event: event.enqueue(foreign.task("send"), "in_1"),
        lambda event: foreign.task("unknown"),
    )
    assert problems[0].startswith("dramatiq.actor.Actor is not a task of dramatiq: register its queue")
    assert problems[1].startswith("'unknown' is not a task of dramatiq") and problems[2].startswith("a int is not")
    assert problems[3].startswith("task.args[0] is a set: another process may run the effect")
    assert problems[4] == "send cannot be called with these arguments: got an unexpected keyword argument 'amount'"
    assert problems[5] == "the task queue dramatiq belongs to another inbox"
    assert problems[6] == "'unknown' is not a task of the task queue dramatiq"


async def test_second_queue_has_a_name_and_is_chosen_by_it(inbox: Inbox, broker: StubBroker) -> None:
    low_broker = make_broker()
    inbox.tasks(broker)
    with pytest.raises(ConfigurationError, match="two task queues are called dramatiq: pass another name"):
        inbox.tasks(low_broker)
    low = inbox.tasks(low_broker, name="low")
    (problem,) = await refusals(inbox, lambda event: event.enqueue("send", "in_1"))
    assert problem.startswith("'send' could be a task of dramatiq, low: choose the queue with queue.task(…)")

    @inbox.on("stripe", "invoice.voided")
    async def voided(event: Event) -> None:
        await event.enqueue(low.task("send"), "in_1")

    await claim(inbox, "evt_2", type="invoice.voided")
    await drain(inbox)
    assert (len(messages(broker)), len(messages(low_broker))) == (0, 1)


@pytest.mark.parametrize("name", ["", "a b", "a:b", 7, "x" * 51])
def test_name_of_a_queue_has_no_special_characters(make_inbox: Callable[..., Inbox], name: str) -> None:
    with pytest.raises(ConfigurationError, match="use up to 50 letters, digits"):
        make_inbox(worker=False).tasks(StubBroker(), name=name)


async def test_process_without_the_queue_leaves_its_tasks_to_others(
    inbox: Inbox, broker: StubBroker, rows: Rows, make_inbox: Callable[..., Inbox]
) -> None:
    inbox.tasks(broker)

    @inbox.on("stripe", "*")
    async def handler(event: Event) -> None:
        await event.enqueue("send", "in_1")

    await claim(inbox, "evt_1")
    await drain(inbox, effects=False)
    other = make_inbox(worker=False)
    other.tasks(make_broker(), name="other")
    async with other.lifespan():
        await drain(other)
    assert rows("SELECT status, attempts FROM webhook_effects") == [("waiting", 0)]
    await drain(inbox)
    assert len(messages(broker)) == 1


async def test_actor_that_the_relay_does_not_know_fails_with_its_name_and_leaves_the_breaker_closed(
    inbox: Inbox, broker: StubBroker, rows: Rows
) -> None:
    queue = inbox.tasks(broker)

    @inbox.on("stripe", "*")
    async def handler(event: Event) -> None:
        await event.enqueue("send", "in_1")

    await claim(inbox, "evt_1")
    await drain(inbox, effects=False)
    del broker.actors["send"]
    await drain(inbox)
    ((status, error),) = rows("SELECT status, last_error FROM webhook_effects")
    assert status == "retrying" and error.startswith("UnknownTask: the actor send is not declared in this process")
    assert queue.breaker.failures == 0


async def test_broker_that_fails_opens_the_circuit_breaker_and_uses_no_more_attempts(
    inbox: Inbox, broker: StubBroker, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit_breaker, "FAILURES", 1)
    queue = inbox.tasks(broker)

    @inbox.on("stripe", "*")
    async def handler(event: Event) -> None:
        await event.enqueue("send", event.id)

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("refused")

    monkeypatch.setattr(broker, "enqueue", fail)
    await claim(inbox, "evt_1", "evt_2")
    await drain(inbox)
    assert queue.breaker.state == "open"
    states = rows("SELECT status, attempts, last_error FROM webhook_effects ORDER BY id")
    assert states == [
        ("retrying", 1, "SendFailed: dramatiq did not take the task: ConnectionError: refused"),
        ("waiting", 0, None),
    ]


def test_log_lines_name_the_queue_and_the_task() -> None:
    target = "celery:shop.tasks.send"
    assert signals.redacted_target("task:celery", target) == target
