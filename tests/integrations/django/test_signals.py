"""The signal that observes attempts."""

from typing import Any

import pytest

from oncehook import Inbox, Retry
from oncehook.integrations.django.signals import attempt_finished
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio


async def test_receiver_observes_attempts_and_cannot_fail_an_event(inbox: Inbox) -> None:
    observed: list[tuple[str, str, int, str | None]] = []

    def observe(sender: Any, event_id: str, status: str, attempt: int, error: str | None, **facts: Any) -> None:
        observed.append((event_id, status, attempt, error))
        raise LookupError("a mistake in the receiver")

    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    def handle(event: Any) -> None:
        if event.id == "evt_2":
            raise ConnectionError("the bank is closed")

    attempt_finished.connect(observe)
    try:
        await claim(inbox, "evt_1", "evt_2")
        inbox._runtime.start_worker()
        await eventually(lambda: len(observed) == 2, "both attempts are observed")
    finally:
        attempt_finished.disconnect(observe)
    assert sorted(observed) == [
        ("evt_1", "processed", 1, None),
        ("evt_2", "failed", 1, "ConnectionError: the bank is closed"),
    ]
