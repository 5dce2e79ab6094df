"""The signal that observes attempts."""

import subprocess
import sys
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


FORK = """
import os, threading
from types import SimpleNamespace
from django.conf import settings
settings.configure()
from oncehook import State
from oncehook.integrations.django.signals import attempt_finished, observe_attempts
from oncehook.model.lease import Settled
from oncehook.observability import signals

def is_observed():
    called = threading.Event()
    def observe(**facts): called.set()
    attempt_finished.connect(observe)
    leased = dict.fromkeys(["source", "consumer", "tenant", "type", "event_id", "object_id", "receipt", "attempt"])
    for send in signals.attempt_observers:
        send(SimpleNamespace(**leased), Settled(1, 1, State.PROCESSED, "processed"), True)
    return called.wait(10)

observe_attempts()
assert is_observed()
child = os.fork()
if child == 0:
    os._exit(0 if is_observed() else 42)
assert os.waitpid(child, 0)[1] == 0, "the child has its own thread"
"""


def test_forked_process_sends_the_signal_too() -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK]  # of a fork with threads
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
