"""Runs operations of the inbox for synchronous code, such as Django's admin."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from oncehook.integrations.django.instance import project
from oncehook.model.receipt import StoredPayload
from oncehook.operations.rehearse import Rehearsal
from oncehook.operations.replay import Replayed

T = TypeVar("T")


def run_operation(operation: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run an operation in the loop of this process's inbox, or in a new loop if the inbox does not run here."""
    thread = project.inbox._gateway.thread
    return thread.run(operation()) if thread.handover is not None else asyncio.run(operation())


def replay(receipts: list[int], actor: str) -> Replayed:
    """Queue finished events to be handled again."""
    inbox = project.inbox
    return run_operation(lambda: inbox.replay(*receipts, actor=actor))


def rehearse(receipts: list[int]) -> list[Rehearsal]:
    """Run the handlers of finished events in transactions that are rolled back."""
    inbox = project.inbox
    return run_operation(lambda: inbox.rehearse(*receipts))


def read_payload(receipt: int) -> StoredPayload | None:
    """Return the payload of an event, decrypted, or None if it was pruned."""
    runtime = project.inbox._runtime

    async def read() -> StoredPayload | None:
        async with runtime.opened_store() as store:
            return await store.receipts.payload(receipt)

    return run_operation(read)
