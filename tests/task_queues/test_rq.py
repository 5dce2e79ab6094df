"""RQ queues: only functions that a worker can import are tasks."""

import pytest
from redis import Redis
from rq import Queue

from oncehook.model.errors import ConfigurationError
from oncehook.task_queues.rq import RqAdapter

pytestmark = pytest.mark.system  # it loads RQ


def send(invoice: str) -> None: ...


@pytest.fixture
def adapter() -> RqAdapter:
    return RqAdapter(Queue("mail", connection=Redis(port=1)))


def test_function_is_a_task_by_its_path(adapter: RqAdapter) -> None:
    found = adapter.find(send)
    assert found is not None and found.name == f"{__name__}.send" and found.function is send
    named = adapter.find("shop.send")
    assert named is not None and named.function is None


def test_function_that_no_worker_can_import_is_no_task(adapter: RqAdapter, monkeypatch: pytest.MonkeyPatch) -> None:
    assert adapter.find(lambda: None) is None
    assert adapter.find(object()) is None
    monkeypatch.setattr(send, "__module__", "__main__")
    assert adapter.find(send) is None


def test_release_of_rq_that_does_not_compare_ids_is_refused(
    adapter: RqAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter.check()
    monkeypatch.setattr(Queue, "enqueue_call", lambda self, func, job_id: None)
    with pytest.raises(ConfigurationError, match=r"needs rq 2\.8 or later"):
        adapter.check()
