"""Effects that are tasks of a task queue: the relay hands each of them over after the commit, with its key as the id.

The kind of such an effect is `task:` and the name of its queue, so a process leases only the tasks of queues that it
has. Its target is the name of the queue and the name of the task, such as `celery:shop.tasks.send_receipt`.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from oncehook.concurrency.calling import error_summary, name_of, runs_in_loop
from oncehook.effects.effect import TASK, Effect, EffectRefused, EffectRegistry, RegisteredEffect
from oncehook.effects.http import SLOTS_PER_ORIGIN
from oncehook.http_client.circuit_breaker import CircuitBreaker
from oncehook.model.errors import ConfigurationError, SendFailed
from oncehook.model.retry import Postpone, Retry
from oncehook.providers.expressions import is_storable
from oncehook.task_queues.adapter import EXPECTED, Adapter, Task, TaskMessage, UnknownTask, library_of, make_adapter
from oncehook.task_queues.threads import BlockingThreads

TASK_TIMEOUT = 15.0
MARGIN = 15.0
"""Seconds for the wait for a slot, before the relay ends the call itself."""

POLICY = Retry(attempts=20)
"""Enough attempts for a broker that is down for a night. An open circuit breaker uses no attempt."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,50}")


@dataclass(frozen=True, slots=True)
class TaskReference:
    """A task of one task queue, for `event.enqueue`. `TaskQueue.task` makes it."""

    queue: "TaskQueue" = field(repr=False)
    task: Task


class TaskQueue:
    """A task queue that `inbox.tasks` registered. It has slots and a circuit breaker, as an HTTP target has."""

    def __init__(self, name: str, adapter: Adapter, seconds: float) -> None:
        self.name = name
        self.adapter = adapter
        self.seconds = seconds
        self.breaker = CircuitBreaker(f"the task queue {name}", SLOTS_PER_ORIGIN)
        self._threads = BlockingThreads(name)

    @property
    def kind(self) -> str:
        return TASK + self.name

    def task(self, task: object) -> TaskReference:
        """Choose this queue for a task that several registered queues could have.

        high = inbox.tasks(Queue("high", connection=redis), name="high")
        await event.enqueue(high.task(send_receipt), invoice=event.object_id)
        """
        found = self.adapter.find(task)
        if found is None:
            raise EffectRefused(f"{_describe(task)} is not a task of the task queue {self.name}")
        return TaskReference(self, found)

    async def hand_over(self, effect: Effect, /, *, args: list[Any], kwargs: dict[str, Any]) -> None:
        """Hand one task over. Returns after the library's acknowledgement, or raises within the time limit."""
        name = effect.target.removeprefix(f"{self.name}:")
        message = TaskMessage(name=name, key=effect.idempotency_key, args=args, kwargs=kwargs, seconds=self.seconds)
        limit = asyncio.timeout(self.seconds)
        async with self.breaker.call() as call:
            try:
                async with limit:
                    await self._send(message)
            except Postpone:
                raise
            except UnknownTask:
                call.succeeded()
                raise
            except Exception as error:
                call.failed()
                if limit.expired():
                    raise SendFailed(f"{self.name} did not take the task within {self.seconds:g} s") from None
                raise SendFailed(f"{self.name} did not take the task: {error_summary(error)}") from error
            call.succeeded()

    async def _send(self, message: TaskMessage) -> None:
        if runs_in_loop(self.adapter.send):
            await self.adapter.send(message)
        else:
            await self._threads.run(partial(self.adapter.send, message))

    async def close(self) -> None:
        self._threads.close()
        await self.adapter.close()


def add_task_queue(
    effects: EffectRegistry,
    queue: object,
    *,
    name: str | None,
    retry: Retry | None,
    seconds: float,
    options: dict[str, Any],
) -> TaskQueue:
    """Register a task queue. Raises ConfigurationError if its name is taken or not valid."""
    library = library_of(queue)
    name = library if name is None else name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(f"inbox.tasks(name={name!r}): use up to 50 letters, digits, `_` or `-`")
    if name in effects.task_queues:
        raise ConfigurationError(f"two task queues are called {name}: pass another name=… to inbox.tasks")
    added = TaskQueue(name, make_adapter(library, queue, options), seconds)
    effects.add(
        RegisteredEffect(added.kind, None, added.hand_over, POLICY if retry is None else retry, seconds + MARGIN)
    )
    effects.task_queues[name] = added
    return added


def find_task(
    queues: Mapping[str, TaskQueue], task: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, str]:
    """The kind and the target of the task that a handler enqueues. Raises EffectRefused if it cannot be enqueued."""
    reference = task if isinstance(task, TaskReference) else _only_reference(queues, task)
    queue, found = reference.queue, reference.task
    if queues.get(queue.name) is not queue:
        raise EffectRefused(f"the task queue {queue.name} belongs to another inbox")
    if not found.name or not is_storable(found.name):
        raise EffectRefused(f"{found.name!r} is not the name of a task")
    problem = found.problem_with(args, kwargs)
    if problem is not None:
        raise EffectRefused(f"{found.name} cannot be called with these arguments: {problem}")
    return queue.kind, f"{queue.name}:{found.name}"


def _only_reference(queues: Mapping[str, TaskQueue], task: object) -> TaskReference:
    if not queues:
        raise EffectRefused(f"no task queue is registered: call inbox.tasks(…) with {EXPECTED}")
    found = [TaskReference(queue, match) for queue in queues.values() if (match := queue.adapter.find(task))]
    if not found:
        raise EffectRefused(
            f"{_describe(task)} is not a task of {', '.join(queues)}: register its queue with inbox.tasks(…), and pass "
            "a task that a worker can import"
        )
    if len(found) > 1:
        names = ", ".join(reference.queue.name for reference in found)
        raise EffectRefused(
            f"{_describe(task)} could be a task of {names}: choose the queue with queue.task(…), where queue is what "
            "inbox.tasks(…) returned"
        )
    return found[0]


def _describe(task: object) -> str:
    if isinstance(task, str):
        return repr(task)
    return name_of(task) if callable(task) else f"a {type(task).__name__}"
