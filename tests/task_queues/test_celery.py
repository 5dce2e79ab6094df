"""Celery apps: which tasks they have, and a broker that would lose tasks."""

import threading

import pytest
from celery import Celery, shared_task

from oncehook.model.errors import ConfigurationError
from oncehook.task_queues.adapter import TaskMessage
from oncehook.task_queues.celery import CeleryAdapter

pytestmark = pytest.mark.system  # Celery takes a second to import


def make_app(name: str, broker: str = "memory://") -> Celery:
    return Celery(name, broker=broker, set_as_current=False)


def test_task_is_found_by_its_object_and_by_its_name() -> None:
    app, other = make_app("shop"), make_app("other")

    @app.task(shared=False)  # type: ignore[untyped-decorator]
    def send(invoice: str) -> None: ...

    adapter = CeleryAdapter(app)
    found = adapter.find(send)
    assert found is not None and found.name == send.name
    assert found.problem_with((), {}) == "missing a required argument: 'invoice'"
    assert adapter.find(send.name) == found
    assert CeleryAdapter(other).find(send) is None and adapter.find(print) is None
    elsewhere = adapter.find("elsewhere.send")  # a task of another program, which this process cannot import
    assert elsewhere is not None and elsewhere.function is None


def test_shared_task_is_found_in_a_thread_too() -> None:
    app = make_app("shop")

    @shared_task  # type: ignore[untyped-decorator]
    def send_shared(invoice: str) -> None: ...

    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(CeleryAdapter(app).find(send_shared)))
    thread.start()
    thread.join()
    assert getattr(found[0], "name", None) == send_shared.name, "a plain handler runs in a thread"


def test_task_that_checks_no_arguments_is_not_checked() -> None:
    app = make_app("shop")

    @app.task(shared=False, typing=False)  # type: ignore[untyped-decorator]
    def send(invoice: str) -> None: ...

    found = CeleryAdapter(app).find(send)
    assert found is not None and found.problem_with((), {}) is None


def test_rabbitmq_without_confirms_is_refused() -> None:
    app = make_app("shop", "amqp://guest@127.0.0.1:1//")
    with pytest.raises(ConfigurationError, match="confirm_publish"):
        CeleryAdapter(app).check()
    app.conf.broker_transport_options = {"confirm_publish": True}
    CeleryAdapter(app).check()
    CeleryAdapter(make_app("shop", "redis://127.0.0.1:1/0")).check()


def test_eager_app_runs_the_task_at_once() -> None:
    app, ran = make_app("shop", "amqp://guest@127.0.0.1:1//"), list[tuple[str, str]]()
    app.conf.task_always_eager = True

    @app.task(bind=True, shared=False)  # type: ignore[untyped-decorator]
    def send(self: Celery, invoice: str) -> None:
        ran.append((self.request.id, invoice))

    adapter = CeleryAdapter(app)
    adapter.check()
    adapter.send(TaskMessage(name=send.name, key="k" * 40, args=["in_1"], kwargs={}, seconds=1))
    assert ran == [("k" * 40, "in_1")]
