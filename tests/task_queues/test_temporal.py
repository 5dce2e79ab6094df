"""Temporal: workflows by their names. `tests/effects/test_tasks.py` runs them on a server."""

import pytest
from temporalio.service import ConnectConfig

from oncehook.model.errors import ConfigurationError
from oncehook.task_queues.adapter import make_adapter
from tests.support.temporal_program import SendReceipt

pytestmark = pytest.mark.system  # it loads Temporal's library


def test_workflow_is_found_by_its_class_by_its_run_method_and_by_its_name() -> None:
    adapter = make_adapter("temporal", ConnectConfig(target_host="127.0.0.1:1"), {"task_queue": "shop"})
    found = adapter.find(SendReceipt.run)
    assert found is not None and found.name == "SendReceipt" and adapter.find(SendReceipt) is not None
    assert found.problem_with(("in_1", 2), {}) is None
    assert found.problem_with(("in_1",), {}) == "missing a required argument: 'amount'"
    named = adapter.find("SendReceipt")
    assert named is not None and "keyword" in (named.problem_with((), {"invoice": "in_1"}) or "")
    assert adapter.find(print) is None
    adapter.check()


def test_task_queue_is_required() -> None:
    with pytest.raises(ConfigurationError, match="for temporal: missing a required argument: 'task_queue'"):
        make_adapter("temporal", ConnectConfig(target_host="127.0.0.1:1"), {})
