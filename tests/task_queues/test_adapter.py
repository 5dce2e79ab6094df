"""The choice of an adapter by the type of an object, and the check of a task's arguments."""

import pytest

from oncehook.model.errors import ConfigurationError
from oncehook.task_queues.adapter import LIBRARIES, Task, library_of, make_adapter


def test_library_is_recognized_by_the_classes_of_an_object_without_an_import() -> None:
    for (package, name), library in LIBRARIES.items():
        base = type(name, (), {"__module__": f"{package}.inner"})
        assert library_of(type("Own", (base,), {})()) == library


@pytest.mark.parametrize("value", [None, "redis://localhost", object(), print, int])
def test_object_that_is_no_task_queue_is_refused_with_what_to_pass(value: object) -> None:
    with pytest.raises(ConfigurationError, match="pass a Celery app, a Dramatiq broker"):
        library_of(value)


def test_class_of_another_package_with_the_same_name_is_no_task_queue() -> None:
    with pytest.raises(ConfigurationError, match="got a Queue"):
        library_of(type("Queue", (), {"__module__": "asyncio.queues"})())


def test_option_that_a_library_does_not_have_is_refused() -> None:
    from rq import Queue

    with pytest.raises(ConfigurationError, match="for rq: got an unexpected keyword argument 'task_queue'"):
        make_adapter("rq", Queue.__new__(Queue), {"task_queue": "shop"})


def test_arguments_are_checked_against_the_function() -> None:
    def send(invoice: str, amount: int = 0) -> None: ...

    task = Task("send", send)
    assert task.problem_with(("in_1",), {}) is None
    assert task.problem_with((), {"invoice": "in_1", "amount": 2}) is None
    assert task.problem_with((), {}) == "missing a required argument: 'invoice'"
    assert task.problem_with(("in_1",), {"total": 2}) == "got an unexpected keyword argument 'total'"


def test_task_without_a_known_function_takes_any_arguments() -> None:
    assert Task("elsewhere.send").problem_with((1, 2), {"three": 3}) is None
    assert Task("built in", type).problem_with((1, 2, 3, 4, 5, 6), {}) is None  # no signature that Python can read


def test_workflow_takes_no_keyword_arguments() -> None:
    problem = Task("Ship", takes_keywords=False).problem_with((), {"order": 1})
    assert problem == "it takes no keyword arguments, and 'order' is one: pass it by position"
