"""A signal to observe attempts, for statistics and logs. Handlers do the work: a receiver is not part of it."""

import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from django.db import connections
from django.dispatch import Signal

from oncehook.model.lease import Leased, Settled
from oncehook.observability import signals

attempt_finished = Signal()
"""Sent after an attempt, in a thread of the worker, outside of any transaction.

Arguments: `source`, `consumer`, `tenant`, `type`, `event_id`, `object_id`, `receipt`, `attempt`, `handler`, `status`
and `error`. It is sent at most once: if the process dies after the COMMIT, no receiver is called. An exception of a
receiver is logged by Django.
"""


def observe_attempts() -> None:
    """Send the signal for the attempts of this process, if it has receivers."""
    if _observe not in signals.attempt_observers:
        signals.attempt_observers.append(_observe)


def _observe(leased: Leased, settled: Settled, is_written: bool) -> None:
    if is_written and attempt_finished.receivers:
        _thread(os.getpid()).submit(_send, leased, settled)


def _send(leased: Leased, settled: Settled) -> None:
    names = ("source", "consumer", "tenant", "type", "event_id", "object_id", "receipt", "attempt")
    facts = {name: getattr(leased, name) for name in names}
    try:
        attempt_finished.send_robust(
            sender=None, **facts, handler=settled.handler, status=settled.status.value, error=settled.error
        )
    finally:
        connections.close_all()


@cache
def _thread(process: int) -> ThreadPoolExecutor:
    """One thread of each process, so that a slow receiver delays only the others, and never the worker."""
    return ThreadPoolExecutor(1, thread_name_prefix="oncehook-django-signals")
