"""Checks on a live database: each violation is planted with SQL and found, and a busy inbox is clean."""

import asyncio
import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from oncehook import Effect, Event, Inbox, Retry
from oncehook.model.receipt import Filter
from oncehook.model.rows import ReplayEntry
from oncehook.operations.fsck import Report
from oncehook.operations.fsck_checks import CHECKS
from oncehook.operations.prune import prune
from oncehook.operations.replay import replay
from oncehook.store.operations import SqlOperationStore
from oncehook.store.rows import MAX_REJECTIONS, Selection
from oncehook.store.store import Store
from oncehook.testing import deliver
from tests.support.ages import set_age
from tests.support.events import Rows, stripe_body
from tests.support.fsck import run_fsck, violations
from tests.support.servers import Postgres, run_sql
from tests.support.stores import claim_and_lease, settle
from tests.support.waiting import eventually
from tests.support.work import effects_are, receipts_are

pytestmark = pytest.mark.anyio

KEPT = "source, provider, tenant, event_id, type, received_at, fingerprint, status, attempts, processed_at"
SET_PROCESSING = "status = 'processing', processed_at = NULL, attempts = 3"


@pytest.fixture(autouse=True)
def reads_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oncehook.operations.fsck.AGAIN_SECONDS", 0)


async def fill(inbox: Inbox, rows: Rows) -> None:
    """Two processed events that were replayed, a dead letter, a duplicate, attempts, effects and entities."""
    inbox.source("stripe", secrets=["whsec_test"])

    @inbox.effect
    async def send_mail(effect: Effect, to: str) -> None: ...

    @inbox.on("stripe", "*", retry=Retry(attempts=2, first=0.01, most=0.01))
    async def handle(event: Event) -> None:
        await event.advance("invoice", event.id, version=1)
        await event.effect(f"mail:{event.id}", send_mail, to="jane")
        if event.id == "evt_fails":
            raise LookupError("no such invoice")

    async with inbox.lifespan():
        for event_id in ("evt_1", "evt_2", "evt_fails"):
            assert (await deliver(inbox, "stripe", stripe_body(event_id))).status == 202
        assert (await deliver(inbox, "stripe", stripe_body("evt_1", other=True))).status == 200
        await eventually(receipts_are(rows, "processed", 2), "two events are processed")
        await eventually(receipts_are(rows, "failed", 1), "an event is a dead letter")
        await inbox._runtime.reception.duplicates.drain()
        await replay(inbox._runtime.store, Selection(Filter(status="processed")), actor="ann")
        await eventually(receipts_are(rows, "processed", 2), "the replayed events are processed")
        await eventually(effects_are(rows, "done", 2), "both effects ran")


@pytest.fixture
async def filled(make_inbox: Callable[..., Inbox], database: str, rows: Rows) -> str:
    await fill(make_inbox(worker=True), rows)
    return database


def ago(database: str, age: str) -> str:
    """A time in SQL."""
    if database.startswith("sqlite"):
        return f"strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-{age}')"
    return f"now() - interval '{age}'"


def live_worker(database: str) -> list[str]:
    matcher, no = ("*", "0") if database.startswith("sqlite") else ("%", "false")
    return [
        "INSERT INTO webhook_workers (name) VALUES ('live')",
        "INSERT INTO webhook_handlers (worker, consumer, source, pattern, matcher, is_projection) "
        f"VALUES ('live', 'main', 'stripe', '*', '{matcher}', {no})",
    ]


def planted(database: str) -> dict[str, list[str]]:
    """The statements that plant a violation of each check."""
    no = "0" if database.startswith("sqlite") else "false"
    first, dead = (
        "(SELECT id FROM webhook_receipts WHERE event_id = 'evt_1')",
        "(SELECT max(id) FROM webhook_receipts)",
    )
    ten_minutes, two_hours = ago(database, "11 minutes"), ago(database, "2 hours")
    return {
        "payload_missing": [f"DELETE FROM webhook_payloads WHERE receipt_id = {dead}"],
        "state": [f"UPDATE webhook_receipts SET processed_at = NULL WHERE id = {first}"],
        "lease_missing": [f"UPDATE webhook_receipts SET {SET_PROCESSING} WHERE id = {first}"],
        "lease_expired": [
            *live_worker(database),
            f"UPDATE webhook_receipts SET {SET_PROCESSING}, lease_until = {ten_minutes} WHERE id = {first}",
        ],
        "overtaken": [
            "UPDATE webhook_receipts SET status = 'received', processed_at = NULL, attempts = 0, "
            f"next_attempt_at = {two_hours} WHERE id = {first}"
        ],
        "attempts": [
            "INSERT INTO webhook_past_attempts (receipt_id, number, started_at, outcome) "
            f"VALUES ({dead}, 2, {ten_minutes}, 'retrying')"
        ],
        "copy": [
            f"INSERT INTO webhook_receipts (id, {KEPT}, main_id, consumer) "
            f"SELECT 900, {KEPT}, 777, 'ledger' FROM webhook_receipts WHERE id = {first}"
        ],
        "replays": [f"UPDATE webhook_receipts SET replays = replays + 1 WHERE id = {first}"],
        "bodies": [f"UPDATE webhook_payloads SET body = 'changed' WHERE receipt_id = {first}"],
        "payload_orphan": [f"UPDATE webhook_payloads SET receipt_id = 888 WHERE receipt_id = {first}"],
        "payload_object": [f"UPDATE webhook_payloads SET object = 'file:///nowhere/x' WHERE receipt_id = {first}"],
        "attempt_orphan": [f"UPDATE webhook_past_attempts SET receipt_id = 888 WHERE receipt_id = {dead}"],
        "key_orphan": ["INSERT INTO webhook_keys (source, key, receipt_id) VALUES ('stripe', '0:x', 888)"],
        "noop_orphan": [
            "INSERT INTO webhook_noops (receipt_id, source, reason, scope, key) "
            "VALUES (888, 'stripe', 'stale', 'stripe', 'x')"
        ],
        "flag": [f"UPDATE webhook_deliveries SET same_body = NOT same_body WHERE same_body = {no}"],
        "effect_state": ["UPDATE webhook_effects SET done_at = NULL"],
        "effect_expired": [
            *live_worker(database),
            "UPDATE webhook_effects SET status = 'performing', done_at = NULL, "
            f"lease_until = {ten_minutes} WHERE receipt_id = {first}",
        ],
        "effect_unprocessed": [f"UPDATE webhook_effects SET receipt_id = {dead} WHERE receipt_id = {first}"],
        "effect_orphan": [f"UPDATE webhook_effects SET receipt_id = 888 WHERE receipt_id = {first}"],
        "entity": [f"UPDATE webhook_entities SET receipt_id = {dead} WHERE receipt_id = {first}"],
        "rejections": [
            "INSERT INTO webhook_rejections (source, reason, detail, method, query, headers, body, size) "
            "SELECT 'stripe', 'bad_signature', 'x', 'POST', '', '{}', '', 0 "
            "FROM webhook_receipts a, webhook_receipts b, webhook_receipts c, webhook_receipts d"
        ],
        "schema": ["DROP INDEX webhook_receipts_leased"],
    }  # fmt: skip


STRUCTURAL = {"unique", "effect_unique", "serial", "partitions"}
"""Checks whose violation needs another schema. Other tests plant it."""


def copies(database: str, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Make copies of an idle database."""
    if database.startswith("sqlite"):
        file = Path(database.removeprefix("sqlite:///"))
        return lambda name: f"sqlite:///{shutil.copy(file, file.with_name(f'{name}.db'))}"
    server: Postgres = request.getfixturevalue("postgres")
    original = database.rpartition("/")[2]

    def copy(name: str) -> str:
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{original}'")
            connection.execute(f"CREATE DATABASE {original}_{name} TEMPLATE {original}")
        return server.url(f"{original}_{name}")

    return copy


async def test_every_planted_violation_is_found(filled: str, request: pytest.FixtureRequest) -> None:
    before = await run_fsck(filled)
    assert before.is_clean, violations(before)
    copy = copies(filled, request)
    for name, statements in planted(filled).items():
        database = copy(name)
        for statement in statements:
            run_sql(database, statement)
        report = await run_fsck(database)
        assert name in violations(report), f"{name} was not found: {violations(report)}"
        check = next(check for check in CHECKS if check.name == name)
        assert {report.status(invariant) for invariant in check.invariants} == {"violated"}
        if not database.startswith("sqlite"):
            request.getfixturevalue("postgres").drop_later(database)


def test_every_check_has_a_planted_violation(database: str) -> None:
    assert {check.name for check in CHECKS} == planted(database).keys() | STRUCTURAL


async def test_duplicates_behind_a_lost_constraint_are_found(filled: str) -> None:
    if filled.startswith("sqlite"):  # whose constraints cannot be dropped
        for view in ("attempts", "dlq", "live_handlers"):
            run_sql(filled, f"DROP VIEW webhook_{view}")
        for table in ("receipts", "effects"):
            run_sql(filled, f"CREATE TABLE copied AS SELECT * FROM webhook_{table}")
            run_sql(filled, f"DROP TABLE webhook_{table}")
            run_sql(filled, f"ALTER TABLE copied RENAME TO webhook_{table}")
    else:
        run_sql(filled, "ALTER TABLE webhook_receipts DROP CONSTRAINT webhook_receipts_once")
        run_sql(filled, "ALTER TABLE webhook_effects DROP CONSTRAINT webhook_effects_once")
        run_sql(filled, "DROP INDEX webhook_receipts_serial_processing")
    run_sql(filled, "UPDATE webhook_effects SET key = 'mail:one'")
    run_sql(filled, f"UPDATE webhook_receipts SET event_id = 'evt_1', serial_key = 'k', {SET_PROCESSING}")
    report = await run_fsck(filled)
    found = violations(report)
    assert found["unique"] == ["3 receipts of one event"] * 3
    assert found["effect_unique"] == ["2 effects with one key"] * 2
    assert found["serial"] == ["3 receipts of key k"]
    assert "webhook_receipts_serial_processing is missing" in found["schema"]
    if filled.startswith("sqlite"):  # a check that needs a missing view does not end the others
        problems = {result.check.name: result.problem for result in report.results if result.problem}
        assert (
            problems.keys() == {"lease_expired"} and "no such table: webhook_live_handlers" in problems["lease_expired"]
        )


async def test_filters_narrow_the_check(filled: str) -> None:
    run_sql(filled, "UPDATE webhook_receipts SET processed_at = NULL WHERE event_id = 'evt_1'")
    set_age(filled, "evt_1", 2)
    assert "state" in violations(await run_fsck(filled))
    assert "state" in violations(await run_fsck(filled, source="stripe"))
    assert "state" not in violations(await run_fsck(filled, source="other"))
    narrowed = await run_fsck(filled, since=datetime.now(UTC) - timedelta(days=1))
    assert "state" not in violations(narrowed) and narrowed.of("I6")[0].examined == 2


async def test_erased_payload_is_no_violation(filled: str, make_inbox: Callable[..., Inbox], rows: Rows) -> None:
    inbox = make_inbox()
    async with inbox.lifespan():
        ((dead,),) = rows("SELECT id FROM webhook_receipts WHERE status = 'failed'")
        await inbox._runtime.store.retention.erase([dead], None, "ann", json.dumps({"count": 1}))
    assert violations(await run_fsck(filled)) == {}


@pytest.mark.sampled(1)
async def test_busy_inbox_is_clean(make_inbox: Callable[..., Inbox], database: str, rows: Rows) -> None:
    """Deliveries, retries, duplicates, replays and pruning run while the checks do."""
    inbox = make_inbox(worker=True)
    inbox.source("stripe", secrets=["whsec_test"], serial_by="object_id")
    reports: list[Report] = []
    seen: set[str] = set()

    @inbox.effect
    async def send_mail(effect: Effect, to: str) -> None: ...

    @inbox.on("stripe", "*", retry=Retry(attempts=3, first=0.01, most=0.01))
    async def handle(event: Event) -> None:
        await event.advance("invoice", event.object_id, version=1)
        await event.effect(f"mail:{event.id}", send_mail, to="jane")
        if event.id not in seen:
            seen.add(event.id)
            raise LookupError("not yet")

    async def send(sender: int) -> None:
        for number in range(15):
            body = stripe_body(f"evt_{sender}_{number}", data={"object": {"id": f"in_{number % 3}"}})
            for _ in range(2):
                assert (await deliver(inbox, "stripe", body)).status in (200, 202)

    async def operate() -> None:
        for _ in range(4):
            await replay(inbox._runtime.store, Selection(), actor="ann")
            await prune(inbox._runtime.store, [], effects=None)
            reports.append(await run_fsck(database))

    async with inbox.lifespan():
        await asyncio.gather(*(send(sender) for sender in range(4)), operate())
        await eventually(
            lambda: rows("SELECT count(*) FROM webhook_receipts WHERE status <> 'processed'") == [(0,)], "all done"
        )
        reports.append(await run_fsck(database))
    assert [violations(report) for report in reports] == [{}] * 5
    assert reports[-1].of("I4")[0].examined == 60


async def test_violation_that_is_gone_when_it_is_read_again_is_not_reported(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_sql(filled, "UPDATE webhook_receipts SET processed_at = NULL WHERE event_id = 'evt_1'")

    async def repair(seconds: float) -> None:
        run_sql(
            filled, f"UPDATE webhook_receipts SET processed_at = {ago(filled, '1 minute')} WHERE event_id = 'evt_1'"
        )

    monkeypatch.setattr("oncehook.operations.fsck.asyncio.sleep", repair)
    assert (await run_fsck(filled)).is_clean


async def test_every_window_of_a_table_is_checked_and_the_violations_of_all_are_counted(
    store: Store, database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, number in (("WINDOW", 3), ("BODIES", 2), ("SHOWN", 4)):
        monkeypatch.setattr(f"oncehook.operations.fsck.{name}", number)
    await settle(store, await claim_and_lease(store, 7))
    rows("UPDATE webhook_receipts SET processed_at = NULL")
    progress: list[str] = []
    report = await run_fsck(database, progress=progress.append)
    (state,) = [result for result in report.results if result.check.name == "state"]
    assert (state.examined, state.number, len(state.rows)) == (7, 7, 4)
    assert [text for text in progress if text.endswith(" receipts")] == [f"{number} receipts" for number in (3, 6, 7)]
    bodies = [text for text in progress if text.endswith(" payloads")][:4]
    assert bodies == [f"{number} payloads" for number in (2, 4, 6, 7)], "each payload may have a megabyte"


async def replay_one_by_one(store: Store, count: int) -> list[int]:
    """Replay processed receipts, each with its own row in the audit log, and process them again."""
    leased = await claim_and_lease(store, count)
    await settle(store, leased)
    for receipt in leased:
        await replay(store, Selection(receipts=(receipt.receipt,)), actor="ann")
    await settle(store, await store.leases.take(count, 60, "second"))
    return [receipt.receipt for receipt in leased]


async def test_every_page_of_the_audit_log_is_compared_with_the_replays(
    store: Store, database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncehook.operations.fsck.AUDIT_PAGE", 2)
    *_, last = await replay_one_by_one(store, 5)
    read_again, replays = list[int](), SqlOperationStore.replays

    async def recording(self: SqlOperationStore, receipt: int) -> list[ReplayEntry]:
        read_again.append(receipt)
        return await replays(self, receipt)

    monkeypatch.setattr(SqlOperationStore, "replays", recording)
    report = await run_fsck(database)
    assert report.is_clean and read_again == [], "a page that is left out costs a search of the log for each receipt"
    rows(f"UPDATE webhook_receipts SET replays = 2 WHERE id = {last}")
    assert violations(await run_fsck(database)) == {"replays": ["replayed 2 times, audited 1 times"]}
    assert read_again == [last]


async def test_replays_are_not_compared_if_the_audit_log_names_too_many_receipts(
    store: Store, database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    await replay_one_by_one(store, 3)
    rows("UPDATE webhook_receipts SET replays = 2")
    monkeypatch.setattr("oncehook.operations.fsck.MAX_REPLAYS", 3)
    assert len(violations(await run_fsck(database))["replays"]) == 3
    monkeypatch.setattr("oncehook.operations.fsck.MAX_REPLAYS", 2)
    report = await run_fsck(database)
    (replays,) = [result for result in report.results if result.check.name == "replays"]
    assert report.is_clean and dict(replays.unknown) == {"replayed receipts: the audit log has too many": 3}


async def test_samples_that_several_processes_stored_at_once_are_no_violation(
    store: Store, database: str, rows: Rows
) -> None:
    sample = "('stripe', 'bad_signature', 'x', 'POST', '', '{}', '', 0)"
    columns = "(source, reason, detail, method, query, headers, body, size)"
    rows(f"INSERT INTO webhook_rejections {columns} VALUES {', '.join([sample] * 2 * MAX_REJECTIONS)}")
    assert violations(await run_fsck(database)) == {}
    rows(f"INSERT INTO webhook_rejections {columns} VALUES {sample}")
    assert violations(await run_fsck(database)).keys() == {"rejections"}
