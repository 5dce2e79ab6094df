"""The public surface: its names, the types that handlers get, and that no documentation reaches behind it."""

import asyncio
import importlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import oncehook
from oncehook import AsyncTransaction, Event, Inbox, InboxOptions, SourceOptions, SyncEvent, SyncTransaction
from oncehook.config.settings import Settings, SourceSettings
from oncehook.testing import deliver, drain
from tests.events import Rows, stripe_body

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[1]
PUBLIC = ("oncehook.testing", "oncehook.email", "oncehook.integrations")

INBOX = {
    "canonical", "dashboard", "effect", "email", "lifespan", "on", "ready", "source", "start", "stop", "subscribe",
}  # fmt: skip

NAMES = {
    "AsyncTransaction", "ConfigurationError", "Effect", "EffectRefused", "Event", "Fail", "Inbox", "InboxOptions",
    "IntakeFull", "OncehookError", "Payload", "Receipt", "Rejected", "Retry", "RetryLater", "Row", "RowRefused",
    "SendFailed", "SendRefused", "SourceOptions", "State", "StoreUnavailable", "SyncEvent", "SyncTransaction",
    "Unavailable",
}  # fmt: skip


def test_names_of_the_package_are_pinned() -> None:
    assert set(oncehook.__all__) == NAMES and len(oncehook.__all__) == len(NAMES)
    assert all(hasattr(oncehook, name) for name in NAMES)


def test_names_of_an_inbox_are_pinned() -> None:
    shown = {name for name in [*dir(Inbox), *vars(Inbox("sqlite:///inbox.db", worker=False))] if name[0] != "_"}
    assert shown == INBOX and len(shown) <= 18


def test_names_of_public_packages_are_pinned() -> None:
    assert set(importlib.import_module("oncehook.testing").__all__) == {
        "Answer", "Bench", "Drained", "NotAtRest", "Pair", "Performed", "advance", "crash", "deliver", "drain",
        "isolated", "make_pair", "perform", "post", "prune", "receipt", "replay", "sign",
    }  # fmt: skip
    assert set(importlib.import_module("oncehook.email").__all__) == {
        "Allowed", "Blocked", "Email", "normalise",
    }  # fmt: skip


def test_options_in_code_are_the_settings_of_the_file() -> None:
    inbox_settings = {field.name for field in fields(Settings)} - {"database"}  # the first argument
    source_settings = {field.name for field in fields(SourceSettings)} - {"secrets"}  # an argument of its own
    assert set(InboxOptions.__annotations__) == inbox_settings
    assert set(SourceOptions.__annotations__) == source_settings


# -- what handlers get ----------------------------------------------------------------------------------------------


async def handled(inbox: Inbox, rows: Rows, number: int = 1) -> list[tuple[Any, ...]]:
    await deliver(inbox, "stripe", stripe_body(f"evt_{number}"))
    await drain(inbox, effects=False)
    return rows("SELECT status, last_error FROM webhook_receipts")


async def test_async_handler_gets_an_event_whose_verbs_are_coroutines(inbox: Inbox, rows: Rows) -> None:
    seen: list[Any] = []

    @inbox.effect
    def send(effect: Any) -> None: ...

    @inbox.on("stripe", "*")
    async def paid(event: Event) -> None:
        seen.append(type(event))
        seen.extend(await asyncio.gather(event.effect("a", send), event.effect("b", send)))
        seen.append(await asyncio.create_task(event.publish("paid", {})))
        seen.append(await event.advance("invoice", "in_1"))

    assert await handled(inbox, rows) == [("processed", None)]
    assert seen == [Event, True, True, True, True]


async def test_plain_handler_gets_a_sync_event_whose_verbs_answer(inbox: Inbox, rows: Rows) -> None:
    seen: list[Any] = []

    @inbox.effect
    def send(effect: Any) -> None: ...

    @inbox.on("stripe", "*")
    def paid(event: SyncEvent) -> None:
        seen.append(type(event))
        seen.append(event.effect("a", send))
        seen.append(event.publish("paid", {}))
        seen.append(event.advance("invoice", "in_1"))
        seen.append(event.is_stale("invoice", "in_1"))

    assert await handled(inbox, rows) == [("processed", None)]
    assert seen == [SyncEvent, True, True, True, False]


async def test_batches_get_the_same_kinds_of_event(inbox: Inbox, rows: Rows) -> None:
    seen: list[Any] = []

    @inbox.on("stripe", "*", batch=2)
    def paid(events: list[SyncEvent]) -> None:
        seen.extend(map(type, events))

    assert await handled(inbox, rows) == [("processed", None)]
    assert seen == [SyncEvent]


@pytest.mark.parametrize("verb", ["effect", "advance"])
async def test_answer_that_was_not_awaited_is_neither_true_nor_false(inbox: Inbox, rows: Rows, verb: str) -> None:
    @inbox.effect
    def send(effect: Any) -> None: ...

    @inbox.on("stripe", "*")
    async def paid(event: Event) -> None:
        if event.effect("a", send) if verb == "effect" else event.advance("invoice", "in_1"):  # type: ignore[truthy-bool]
            raise AssertionError("not reached")

    [(status, error)] = await handled(inbox, rows)
    assert status == "retrying"
    assert error == f"NotAwaited: event.{verb}(…) was not awaited: write `await event.{verb}(…)`"


async def test_hidden_coroutine_of_a_plain_handler_may_await_its_verbs(inbox: Inbox, rows: Rows) -> None:
    """A decorator without functools.wraps hides that the handler is an `async def`."""
    seen: list[Any] = []

    async def hidden(event: Any) -> None:
        seen.append(await event.advance("invoice", "in_1"))

    inbox.on("stripe", "*")(lambda event: hidden(event))  # type: ignore[arg-type,return-value]
    assert await handled(inbox, rows) == [("processed", None)]
    assert seen == [True]


async def test_both_kinds_of_tx_have_the_methods_of_their_protocol(inbox: Inbox, rows: Rows) -> None:
    one, two = ("$1", "$1, $2") if inbox._runtime.settings.database.startswith("postgresql") else ("?", "?, ?")
    seen: list[Any] = []

    @inbox.on("stripe", "*")
    async def with_await(event: Event, tx: AsyncTransaction) -> None:
        await tx.execute("CREATE TABLE notes (number int, word text)")
        await tx.executemany(f"INSERT INTO notes VALUES ({two})", [(1, "one"), (2, "two"), (3, "three")])
        async with tx.transaction():
            await tx.execute(f"DELETE FROM notes WHERE number = {one}", 3)
        seen.append([dict(row.items()) for row in await tx.fetch("SELECT * FROM notes ORDER BY number")])

    @inbox.on("github", "*")
    def in_thread(event: SyncEvent, tx: SyncTransaction) -> None:
        tx.executemany(f"INSERT INTO notes VALUES ({two})", [(4, "four")])
        row = tx.fetchrow(f"SELECT * FROM notes WHERE number = {one}", 4)
        seen.append((row and row["word"], row and list(row.keys()), tx.fetchval("SELECT count(*) FROM notes")))

    await handled(inbox, rows)
    await deliver(inbox, "github", type="push")
    await drain(inbox)
    assert seen == [
        [{"number": 1, "word": "one"}, {"number": 2, "word": "two"}],
        ("four", ["number", "word"], 3),
    ]
