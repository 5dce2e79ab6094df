"""A task queue of another library: one small protocol, and the choice of its adapter by the type of an object.

An adapter hands over one task and returns after the library's own acknowledgement. The id of the task is the
idempotency key of its effect, so a repeated hand-over has the same id. The library is recognized by the names of the
object's classes: no library is imported to find out that it is not the one.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol, cast

from oncehook.model.errors import ConfigurationError, OncehookError

LIBRARIES = {
    ("celery", "Celery"): "celery",
    ("dramatiq", "Broker"): "dramatiq",
    ("rq", "Queue"): "rq",
    ("arq", "RedisSettings"): "arq",
    ("taskiq", "AsyncBroker"): "taskiq",
    ("temporalio", "ConnectConfig"): "temporal",
}
"""The adapter of each class that names a task queue: its top-level package and its name."""

EXPECTED = (
    "a Celery app, a Dramatiq broker, an RQ Queue, arq's RedisSettings, a Taskiq broker or Temporal's ConnectConfig"
)


class UnknownTask(OncehookError):
    """A task that this process cannot hand over, because it does not know its queue."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task by the name that its library gives it. `function` has its parameters, if this process knows them."""

    name: str
    function: Callable[..., Any] | None = None
    takes_keywords: bool = True

    def problem_with(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """What is wrong with the arguments, or None. A worker would fail with them at every attempt."""
        if kwargs and not self.takes_keywords:
            return f"it takes no keyword arguments, and {next(iter(kwargs))!r} is one: pass it by position"
        if self.function is None:
            return None
        try:
            signature = inspect.signature(self.function)
        except (TypeError, ValueError):
            return None
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMessage:
    """A task to hand over. `key` is the same at every attempt, and becomes the id of the task."""

    name: str
    key: str
    args: list[Any] = field(repr=False)
    kwargs: dict[str, Any] = field(repr=False)
    seconds: float  # the time limit of the hand-over


class Adapter(Protocol):
    """One task queue. A blocking `send` runs in a thread; an `async def` runs in the event loop."""

    def check(self) -> None:
        """Raise ConfigurationError if the library would lose tasks without an error."""

    def find(self, task: object) -> Task | None:
        """The task that an object or a name stands for, or None if it is not one of this queue."""

    def send(self, message: TaskMessage) -> Any:
        """Hand over a task, and return after the library's acknowledgement.

        Returns too if the library refuses the task because its id exists. Raises UnknownTask, or the library's errors.
        """

    async def close(self) -> None:
        """Close the connections that the adapter opened. It may be used again afterwards."""


def library_of(queue: object) -> str:
    """The name of the library that an object belongs to. Raises ConfigurationError if it is no task queue."""
    for kind in type(queue).__mro__:
        library = LIBRARIES.get((kind.__module__.partition(".")[0], kind.__name__))
        if library is not None:
            return library
    raise ConfigurationError(f"inbox.tasks(…) got a {type(queue).__name__}: pass {EXPECTED}")


def make_adapter(library: str, queue: object, options: dict[str, Any]) -> Adapter:
    """Make the adapter of a task queue. Raises ConfigurationError for options that it does not have."""
    module = import_module(f"oncehook.task_queues.{library}")
    try:
        inspect.signature(module.make_adapter).bind(queue, **options)
    except TypeError as error:
        raise ConfigurationError(f"inbox.tasks(…) for {library}: {error}") from None
    return cast(Adapter, module.make_adapter(queue, **options))
