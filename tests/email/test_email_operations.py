"""`inbox.email`: rebuild, verify, prune, forget and counts, on both databases."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncehook.config.settings import Settings
from oncehook.email import Email, suppressions
from oncehook.operations.prune import prune_email
from oncehook.store.store import Store
from tests.support.email_facts import (
    DAY0,
    email_tables,
    make_fact,
    make_history,
    record_facts,
)
from tests.support.events import Rows
from tests.support.servers import run_sql

pytestmark = pytest.mark.anyio


async def test_rebuild_fixes_and_reports_differences(store: Store, database: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("oncehook.email.PAGE", 7)
    email = Email.of(store, Settings(email_soft_bounces=3))
    facts = make_history(200)
    await record_facts(store, facts)
    before = email_tables(database)
    assert (await email.verify()).as_json()["differences"] == 0
    back = " RETURNING 1" if database.startswith("p") else ""
    broken = "UPDATE webhook_email_status SET status = 'delivered', bounce = NULL WHERE status = 'bounced'"
    count = len(run_sql(database, "SELECT 1 FROM webhook_email_status WHERE status = 'bounced'"))
    run_sql(database, broken + back)
    run_sql(database, "DELETE FROM webhook_email_status WHERE status = 'opened' OR message_id LIKE 'm1%'" + back)
    run_sql(database, "DELETE FROM webhook_suppressions WHERE address LIKE 'r1%'" + back)
    assert count and len((await email.verify()).differences) > 10
    seen: list[int] = []
    done = await email.rebuild(lambda so_far: seen.append(so_far.messages))
    assert done.messages == len(before["status"]) and len(seen) > 10
    assert email_tables(database) == before
    assert (await email.verify()).differences == []


async def test_rebuild_loses_no_fact_that_arrives_meantime(store: Store, database: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("oncehook.email.PAGE", 10)
    email = Email.of(store, Settings(email_soft_bounces=3))
    facts = make_history(600)

    async def arrive() -> None:
        for start in range(0, len(facts), 20):
            await record_facts(store, facts[start : start + 20])

    arriving = asyncio.create_task(arrive())
    while not arriving.done():
        await email.rebuild()
    await arriving
    assert (await email.verify()).differences == []


@pytest.mark.parametrize("fix", [False, True])
async def test_projection_during_a_check_is_not_a_difference(store: Store, monkeypatch: Any, fix: bool) -> None:
    """An address without a row cannot be locked, so its first suppression may be written during the check."""
    email = Email.of(store, Settings())
    await record_facts(store, [make_fact(1, "bounced", 0, bounce="soft")])
    read = suppressions._facts
    came: list[Any] = []

    async def late(transaction: Any, addresses: Any) -> Any:
        if not came and not store.dialect.single_writer:  # SQLite has a single writer
            came.append(addresses)
            await record_facts(store, [make_fact(2, "bounced", 1, bounce="hard")])
            await email.allow("jane@example.com", actor="ops")
            await record_facts(store, [make_fact(3, "bounced", 9999, bounce="hard")])
        return await read(transaction, addresses)

    # The facts must come between two queries of one transaction. The real query runs after them.
    monkeypatch.setattr(suppressions, "_facts", late)
    assert (await (email.rebuild() if fix else email.verify())).differences == []
    if came:
        found = await email.suppression("jane@example.com")
        assert found is not None and found["event"] == "k3" and found["removed_at"] is not None


async def test_pruning_deletes_whole_messages_and_lifts_no_suppression(store: Store, rows: Rows) -> None:
    now = (datetime.now(UTC) - DAY0).days
    email = Email.of(store, Settings(email_retention=(now - 5) * 86400.0))
    old = [
        make_fact(1, "delivered", 0),
        make_fact(1, "bounced", 1, bounce="hard", key="b"),
        make_fact(9, "complained", 0, "joe@example.com", message_id=""),
    ]
    new = [make_fact(2, "delivered", 0), make_fact(2, "opened", now - 1, key="o")]
    await record_facts(store, old + new)
    assert await email.prunable() == 3
    deleted, has_more = await email.prune()
    assert (deleted, has_more) == (3, False) and await email.prunable() == 0
    assert rows("SELECT message_id FROM webhook_email_status") == [("m2",)]
    assert sorted(rows("SELECT key FROM webhook_email_events")) == [("k2",), ("o",)]
    for _ in range(2):
        assert not await email.can_send("jane@example.com")
        assert not await email.can_send("joe@example.com")
        assert (await email.rebuild()).differences == []


async def test_forgetting_erases_facts_and_keeps_the_suppression_as_a_hash(
    store: Store, database: str, rows: Rows
) -> None:
    email = Email.of(store, Settings())
    mention = make_fact(
        5,
        "bounced",
        0,
        "joe@example.com",
        bounce="soft",
        reason="550 <Jane@example.com> moved",
        metadata='{"cc":"jane@example.com"}',
    )
    await record_facts(
        store,
        [make_fact(1, "bounced", bounce="hard", key="m1|Bounce|jane@example.com"), make_fact(1, "opened", 1), mention],
    )
    assert await email.forget("JANE@Example.com", actor="ops") > 0
    dump = str(
        [
            run_sql(database, f"SELECT * FROM {table}")
            for table in ("webhook_email_events", "webhook_email_status", "webhook_suppressions", "webhook_audit")
        ]
    )
    assert "jane" not in dump.lower()
    assert not await email.can_send("jane@example.com")
    assert (await email.rebuild()).differences == []
    assert not await email.can_send("jane@EXAMPLE.com")
    assert rows("SELECT key FROM webhook_email_events") == [("k5",)]
    assert await email.forget("jane@example.com", actor="ops") == 0


async def test_forgetting_erases_mentions_in_other_rows_consistently(store: Store, rows: Rows) -> None:
    email = Email.of(store, Settings())
    mention = make_fact(
        5, "bounced", 0, "joe@example.com", bounce="soft", reason="550 no", metadata='{"cc":"jane@example.com"}'
    )
    without_reason = [
        make_fact(6, "delivered", 0, "joe@example.com", metadata='{"cc":"Jane@example.com"}'),
        make_fact(7, "delivered", 0, "joe@example.com", tags='["jane@example.com"]', metadata='{"a":1}'),
    ]
    await record_facts(store, [mention, *without_reason])
    await email.suppress("ann@example.com", actor="ops", note="said jane@example.com")
    assert await email.knows("jane@example.com")
    assert await email.forget("jane@example.com", actor="ops") == 4
    assert not await email.knows("jane@example.com")
    facts = rows("SELECT reason, tags, metadata FROM webhook_email_events ORDER BY message_id")
    assert facts == [("550 no", "[]", "{}"), (None, "[]", "{}"), (None, "[]", '{"a":1}')]
    assert rows("SELECT address, note FROM webhook_suppressions") == [("ann@example.com", None)]
    assert (await email.verify()).differences == []


@pytest.mark.parametrize("to", ["jane@example.com", "zoe@example.com"])  # sorted before and after a hash
async def test_suppression_of_a_forgotten_address_is_lifted_by_its_address(store: Store, rows: Rows, to: str) -> None:
    email = Email.of(store, Settings())
    await record_facts(store, [make_fact(1, "bounced", 0, to, bounce="hard")])
    await email.forget(to, actor="ops")
    assert not await email.can_send(to)
    lifted = await email.allow(to, actor="ops", note=f"{to} asked")
    assert (lifted["address"], lifted["since"]) == (to, None)
    assert await email.can_send(to)
    assert rows("SELECT note FROM webhook_suppressions WHERE address LIKE 'sha256:%'") == [(None,)]
    assert (await email.rebuild()).differences == [] and await email.can_send(to)


async def test_counts_group_facts_by_any_dimension(store: Store) -> None:
    email = Email.of(store, Settings())
    tagged = {"tags": json.dumps(["receipt", "shop"])}
    facts = [
        make_fact(1, "delivered", 0, **tagged),
        make_fact(2, "delivered", 0.5, "joe@example.net"),
        make_fact(3, "opened", 1, **tagged),
        make_fact(4, "bounced", 1, bounce="hard"),
    ]
    for _ in range(3):
        await record_facts(store, facts)
    assert await email.counts() == [
        {"day": "2025-11-01", "type": "delivered", "bounce": None, "events": 2},
        {"day": "2025-11-02", "type": "bounced", "bounce": "hard", "events": 1},
        {"day": "2025-11-02", "type": "opened", "bounce": None, "events": 1},
    ]
    assert await email.counts(["tag"]) == [
        {"tag": "receipt", "events": 2}, {"tag": "shop", "events": 2}, {"tag": None, "events": 2}
    ]  # fmt: skip
    assert await email.counts(["domain"]) == [{"domain": "example.com", "events": 4}]
    assert await email.counts(["source"], since=DAY0 + timedelta(days=1)) == [{"source": "ses", "events": 2}]
    assert await email.counts([], until=DAY0 + timedelta(days=1), source="ses") == [{"events": 2}]
    assert await email.counts([], source="other") == []


async def test_prune_email_deletes_old_facts_in_batches_and_logs_it(
    store: Store, rows: Rows, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr("oncehook.email.PAGE", 3)
    caplog.set_level("INFO", "oncehook")
    await record_facts(store, [make_fact(n, "delivered", 0) for n in range(10)])
    assert await prune_email(Email.of(store, Settings()).prune) == 0  # facts stay for ever by default
    email = Email.of(store, Settings(email_retention=86400.0))
    assert await email.prunable() == 10
    assert await prune_email(email.prune) == 10 and await email.prunable() == 0
    assert (
        rows("SELECT count(*) FROM webhook_email_events") == rows("SELECT count(*) FROM webhook_email_status") == [(0,)]
    )
    assert [vars(record)["event"] for record in caplog.records] == ["email_pruned"]
