"""Whether the queue responds, logged when it changes."""

from typing import Any

from oncehook.model.errors import BrokerUnavailable
from oncehook.worker.queue.health import PATIENCE, QueueHealth
from tests.support.clocks import ManualClock


def test_it_is_down_when_every_call_failed_for_a_while(emitted: list[tuple[str, dict[str, Any]]]) -> None:
    clock = ManualClock()
    health = QueueHealth(clock)
    error = BrokerUnavailable("receive_message of AWS sqs failed")
    health.failed(error)
    seen = [health.is_down]
    clock.advance(PATIENCE)
    health.failed(error)
    seen.append(health.is_down)
    health.succeeded()
    health.succeeded()
    seen.append(health.is_down)
    assert seen == [False, True, False]
    assert emitted == [("queue_unavailable", {"detail": error.detail}), ("queue_available", {})]
