"""The public surface: its names, the types that handlers get, and that no documentation reaches behind it."""

import asyncio
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import oncehook
from oncehook import (
    AsyncTransaction,
    ConfigurationError,
    Event,
    EventNotFound,
    Fail,
    Inbox,
    InboxOptions,
    Retry,
    SourceOptions,
    State,
    SyncEvent,
    SyncTransaction,
)
from oncehook.config.settings import Settings, SourceSettings
from oncehook.testing import advance, deliver, drain
from tests.support import ROOT
from tests.support.documentation import DJANGO_PAGES
from tests.support.events import Rows, stripe_body

pytestmark = pytest.mark.anyio

PUBLIC = ("oncehook.testing", "oncehook.email", "oncehook.integrations")

INBOX = {
    "backfill", "canonical", "consumer", "dashboard", "effect", "email", "events", "lifespan", "metrics", "on", "pause",
    "prune", "ready", "rehearse", "replay", "resume", "running", "source", "start", "stop", "subscribe", "tasks",
    "wsgi",
}  # fmt: skip

NAMES = {
    "AsyncTransaction", "ConfigurationError", "Effect", "EffectRefused", "Event", "EventAmbiguous", "EventFilter",
    "EventNotFound", "Fail", "Inbox", "InboxOptions", "IntakeFull", "OncehookError", "Payload", "Pruned", "Receipt",
    "Rehearsal", "Rejected", "Replayed", "Retry", "RetryLater", "Row", "RowRefused", "SendFailed", "SendRefused",
    "SourceOptions", "State", "StoreUnavailable", "SyncEvent", "SyncTransaction", "TransactionClosed",
    "Unavailable",
}  # fmt: skip


def test_names_of_the_package_are_pinned() -> None:
    assert set(oncehook.__all__) == NAMES and len(oncehook.__all__) == len(NAMES)
    assert all(hasattr(oncehook, name) for name in NAMES)


def test_names_of_an_inbox_are_pinned() -> None:
    shown = {name for name in [*dir(Inbox), *vars(Inbox("sqlite:///inbox.db", worker=False))] if name[0] != "_"}
    assert shown == INBOX and len(shown) <= 23


def test_names_of_public_packages_are_pinned() -> None:
    assert set(importlib.import_module("oncehook.testing").__all__) == {
        "Bench", "DeliveryResponse", "Drained", "NotAtRest", "Pair", "Performed", "advance", "crash", "deliver",
        "drain", "isolated", "make_pair", "perform", "post", "prune", "receipt", "replay", "sign",
    }  # fmt: skip
    assert set(importlib.import_module("oncehook.email").__all__) == {
        "Allowed", "Blocked", "Email", "normalise",
    }  # fmt: skip


def test_options_in_code_are_the_settings_in_the_file() -> None:
    only_in_the_file = {"database", "effect_targets"}  # the first argument, and what code must not choose
    inbox_settings = {field.name for field in fields(Settings)} - only_in_the_file
    source_settings = {field.name for field in fields(SourceSettings)} - {"secrets"}  # a separate argument
    assert set(InboxOptions.__annotations__) == inbox_settings
    assert set(SourceOptions.__annotations__) == source_settings


# -- what handlers get ----------------------------------------------------------------------------------------------


async def handled(inbox: Inbox, rows: Rows, number: int = 1) -> list[tuple[Any, ...]]:
    await deliver(inbox, "stripe", stripe_body(f"evt_{number}"))
    await drain(inbox, effects=False)
    return rows("SELECT status, last_error FROM webhook_receipts")


async def test_async_handler_gets_an_event_whose_methods_are_coroutines(inbox: Inbox, rows: Rows) -> None:
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


async def test_plain_handler_gets_a_sync_event_whose_methods_return_results(inbox: Inbox, rows: Rows) -> None:
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
async def test_call_that_was_not_awaited_cannot_be_used_as_a_boolean(inbox: Inbox, rows: Rows, verb: str) -> None:
    @inbox.effect
    def send(effect: Any) -> None: ...

    @inbox.on("stripe", "*")
    async def paid(event: Event) -> None:
        if event.effect("a", send) if verb == "effect" else event.advance("invoice", "in_1"):  # type: ignore[truthy-bool]
            raise AssertionError("not reached")

    [(status, error)] = await handled(inbox, rows)
    assert status == "retrying"
    assert error == f"NotAwaited: event.{verb}(…) was not awaited: write `await event.{verb}(…)`"


async def test_coroutine_that_a_plain_handler_returns_may_await_methods_of_the_event(inbox: Inbox, rows: Rows) -> None:
    """A decorator without functools.wraps hides that the handler is an `async def`."""
    seen: list[Any] = []

    async def hidden(event: Any) -> None:
        seen.append(await event.advance("invoice", "in_1"))

    inbox.on("stripe", "*")(lambda event: hidden(event))
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


# -- operations -----------------------------------------------------------------------------------------------------


@pytest.fixture
async def worked(make_inbox: Callable[..., Inbox]) -> Inbox:
    """An inbox that is not running, with two processed events and a dead letter."""
    inbox = make_inbox()
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.on("stripe", "*", retry=Retry(attempts=1))
    async def handler(event: Event, tx: AsyncTransaction) -> None:
        await tx.fetchval("SELECT 1")
        if event.id == "evt_bad" and not event.replays:
            raise Fail("not today")

    async with inbox.lifespan():
        for name in ("evt_1", "evt_2", "evt_bad"):
            await deliver(inbox, "stripe", stripe_body(name))
        await drain(inbox)
    return inbox


async def listed(inbox: Inbox, limit: int | None = None, **wanted: Any) -> list[tuple[str, str]]:
    return [(receipt.event_id, receipt.status.value) async for receipt in inbox.events(limit=limit, **wanted)]


@pytest.mark.parametrize("running", [False, True])
async def test_operations_work_on_a_running_and_on_a_stopped_inbox(worked: Inbox, running: bool) -> None:
    async with worked.lifespan() if running else nullcontext():
        assert await listed(worked) == [("evt_bad", "failed"), ("evt_2", "processed"), ("evt_1", "processed")]
        would = await worked.replay(status="failed", dry_run=True)
        assert (would.count, await listed(worked, status="failed")) == (1, [("evt_bad", "failed")])
        done = await worked.replay(status="failed", actor="release-417")
        assert (done.matched, done.count, dict(done.replayed)) == (1, 1, {"failed": 1})
        assert await listed(worked, status=State.RECEIVED) == [("evt_bad", "received")]


async def test_stop_without_a_start_changes_nothing(worked: Inbox) -> None:
    await worked.stop()
    async with worked.lifespan():
        assert (await deliver(worked, "stripe", stripe_body("evt_3"))).status == 202
        assert len(await drain(worked)) == 1
        assert worked._runtime.is_running


async def test_events_are_filtered_and_limited(worked: Inbox) -> None:
    assert await listed(worked, limit=1) == [("evt_bad", "failed")]
    assert await listed(worked, source="stripe", status="processed", since="1h", type="invoice.*", limit=5) == [
        ("evt_2", "processed"),
        ("evt_1", "processed"),
    ]
    assert await listed(worked, until=timedelta(hours=1)) == await listed(worked, source="github") == []
    assert await listed(worked, since=datetime.now(UTC) - timedelta(hours=1), search="evt_1") == [
        ("evt_1", "processed")
    ]


async def test_events_are_replayed_by_number_and_by_id(worked: Inbox) -> None:
    [newest] = [receipt async for receipt in worked.events(limit=1)]
    done = await worked.replay(newest.receipt, "evt_1")
    assert dict(done.replayed) == {"failed": 1, "processed": 1}
    assert sorted(await listed(worked, status="received")) == [("evt_1", "received"), ("evt_bad", "received")]
    left = await worked.replay("evt_1")
    assert (left.count, dict(left.left)) == (0, {"received": 1})


async def test_rehearsal_shows_what_the_handler_would_do(worked: Inbox) -> None:
    [rehearsal] = await worked.rehearse("evt_bad")
    assert rehearsal.error is None and [statement.sql for statement in rehearsal.statements] == ["SELECT 1"]
    assert len(await worked.rehearse(source="stripe")) == 3
    assert await listed(worked, status="received") == []


async def test_source_is_paused_and_resumed(worked: Inbox) -> None:
    assert await worked.pause("stripe", duration="2h", reason="the warehouse is migrated", actor="jane")
    assert not await worked.pause("stripe")
    async with worked.lifespan():
        await deliver(worked, "stripe", stripe_body("evt_3"))
        assert await drain(worked) == []
        assert await worked.resume("stripe") and not await worked.resume("stripe")
    with pytest.raises(ConfigurationError, match="there is no source strip; the sources are stripe"):
        await worked.pause("strip")


async def test_prune_counts_and_removes(worked: Inbox) -> None:
    async with worked.lifespan():
        await advance(worked, "90d")
        would = await worked.prune(dry_run=True)
        assert would is not None and dict(would.receipts) == {"stripe": 2}
        done = await worked.prune()
    assert done is not None and dict(done.receipts) == {"stripe": 2}
    assert await listed(worked) == [("evt_bad", "failed")]


async def test_metrics_of_the_inbox_are_those_of_the_service(worked: Inbox) -> None:
    async with worked.lifespan():
        assert b'oncehook_receipts{consumer="main",source="stripe",state="failed"} 1.0' in await worked.metrics()


@pytest.mark.sampled(19)
@pytest.mark.parametrize(
    ("operation", "error"),
    [
        (lambda inbox: inbox.replay(), "pass either receipts or a filter"),
        (lambda inbox: inbox.replay(source=None), "pass either receipts or a filter"),
        (lambda inbox: inbox.replay(search=""), "pass either receipts or a filter"),
        (lambda inbox: inbox.rehearse(status=None, handled_by=None), "pass either receipts or a filter"),
        (
            lambda inbox: inbox.replay(sorce="stripe"),
            "there is no filter 'sorce'; the filters are source, tenant, consumer, type",
        ),
        (lambda inbox: inbox.replay("evt_1", sorce="stripe"), "there is no filter 'sorce'"),
        (lambda inbox: inbox.rehearse(states="failed"), "there is no filter 'states'"),
        (lambda inbox: listed(inbox, stat="failed"), "there is no filter 'stat'"),
        (lambda inbox: inbox.replay(1, status="failed"), "pass either receipts or a filter"),
        (lambda inbox: inbox.replay("evt_9"), "there is no event evt_9; nothing was done"),
        (lambda inbox: inbox.replay(status="broken"), "status='broken' is not a status; the statuses are received"),
        (lambda inbox: inbox.replay(since="yesterday"), "'yesterday' is not a time"),
        (lambda inbox: inbox.replay(status="failed", rate="fast"), "expected a rate such as 50/s"),
        (lambda inbox: inbox.replay([1, 2]), "[1, 2] is not an event: pass receipt numbers or event ids as separate"),
        (lambda inbox: inbox.replay("evt_1", None), "None is not an event: pass receipt numbers or event ids"),
        (lambda inbox: inbox.replay(True), "True is not an event: pass receipt numbers or event ids"),
        (lambda inbox: inbox.rehearse([1, 2]), "[1, 2] is not an event: pass receipt numbers or event ids"),
        (lambda inbox: inbox.pause("stripe", duration="0s"), "duration='0s': expected more than 0"),
        (lambda inbox: inbox.pause("stripe", duration=-5), "duration=-5: expected a duration such as"),
    ],
)
async def test_wrong_argument_is_an_error_with_a_hint(
    worked: Inbox, operation: Callable[[Inbox], Any], error: str
) -> None:
    with pytest.raises((TypeError, ValueError, EventNotFound), match=re.escape(error)):
        await operation(worked)
    assert await listed(worked, status="received") == []


# -- documentation --------------------------------------------------------------------------------------------------

IMPORT = re.compile(r"^\s*(?:from (oncehook[\w.]*) import|import (oncehook[\w.]*))", re.MULTILINE)
CONTRIBUTORS = ROOT / "ADDING_PROVIDERS.md"  # it shows a module of the package itself
PAGES = [page for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")) if page != CONTRIBUTORS]


def test_documentation_and_examples_import_public_modules_only() -> None:
    for page in [*PAGES, *ROOT.glob("examples/**/*.py")]:
        modules = {found[1] or found[2] for found in IMPORT.finditer(page.read_text("utf-8"))}
        internal = [name for name in modules - {"oncehook"} if ".".join(name.split(".")[:2]) not in PUBLIC]
        assert internal == [], page


def test_documentation_does_not_show_the_runtime() -> None:
    shown = [page.name for page in PAGES if "inbox._runtime." in page.read_text("utf-8")]
    assert shown == []


@pytest.mark.rest
def test_code_of_the_documentation_passes_a_type_checker(tmp_path: Path) -> None:
    """Whatever a reader copies: no forgotten `await`, and the kind of event that each handler gets."""
    for page in [page for page in PAGES if page.relative_to(ROOT).as_posix() not in DJANGO_PAGES]:
        for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)):
            (tmp_path / f"{page.stem.replace('-', '_')}_{number}.py").write_text(block, "utf-8")
    rules = {"reportUnusedCoroutine": "error", "reportUnnecessaryComparison": "error"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(rules))
    checker = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson"]
    checked = json.loads(subprocess.run(checker, cwd=tmp_path, capture_output=True, text=True).stdout)
    found = [(Path(one["file"]).stem, one["message"]) for one in checked["generalDiagnostics"]]
    assert checked["summary"]["filesAnalyzed"] > 20
    assert [one for one in found if "WSGI" not in one[1]] == []  # a2wsgi, Flask and Starlette annotate them differently
