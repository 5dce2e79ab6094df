"""Mistakes that both checkers report, each with the ignore comments of its errors."""

from dataclasses import dataclass
from typing import Annotated

from oncehook import AsyncTransaction, Effect, Event, Inbox, Payload, SyncEvent

inbox = Inbox("sqlite:///inbox.db")
Inbox(concurency=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Inbox(concurrency="4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
inbox.source("stripe", mode="inlined")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
inbox.source("stripe", secret="x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@inbox.effect
def send(effect: Effect) -> None: ...


@inbox.on("stripe", "forgotten.await")
async def forgets_to_await(event: Event, tx: AsyncTransaction) -> None:
    event.effect("key", send)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    event.publish("topic", {})  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    event.advance("invoice", "1")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    event.is_stale("invoice", "1")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    event.canonical()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    tx.execute("DELETE FROM invoices")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    if event.advance("invoice", "1"):  # type: ignore[truthy-bool]  # pyright: ignore[reportUnnecessaryComparison]
        return


@inbox.on("stripe", "needless.await")
def awaits_in_a_thread(event: SyncEvent) -> None:
    event.effect("key", send).send(None)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


@dataclass
class Invoice:
    amount: int


@inbox.on("stripe", "typed.payload")
async def reads_an_unknown_field(event: Event, invoice: Annotated[Invoice, Payload("data.object")]) -> None:
    invoice.total  # type: ignore[attr-defined]  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


@inbox.on("stripe", "wrong.event")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
def takes_the_async_event(event: Event) -> None: ...


@inbox.on("stripe", "wrong.sync")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
async def takes_the_sync_event(event: SyncEvent) -> None: ...


@inbox.on("stripe", "nothing")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
async def takes_nothing() -> None: ...


@inbox.on("stripe", "batch", batch=10)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
async def takes_one_of_a_batch(event: Event) -> None: ...


@inbox.effect  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
def takes_no_effect(number: int) -> None: ...


async def mistaken_filters() -> None:
    await inbox.replay(state="failed")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await inbox.replay(since=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    inbox.resume("stripe")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]


def mistaken_script() -> None:
    with inbox.running() as running:
        running.replay(state="failed")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        inbox.replay(status="failed")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
