"""A statement of one consumer sees that consumer's rows only, and changes those only.

Each statement with `:consumer` runs twice, and is rolled back: among receipts, pauses and rates of other consumers in
every state, and without them. Both must return the same and leave the same.
"""

import json
import random
import re
from collections.abc import Mapping, Set
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from oncehook.model.errors import RowRefused, StoreUnavailable
from oncehook.model.timestamps import rfc3339
from oncehook.store import queries
from oncehook.store.executor import Run
from oncehook.store.pauses import handled_parameters
from oncehook.store.store import Store
from tests.support.servers import run_sql

pytestmark = pytest.mark.anyio

CONSUMER = "mailer"
OTHERS = ("audit", "main")
SOURCES = ("adyen", "github", "shopify", "stripe")
TYPES = ("a.paid", "b.paid", "c.paid", "d.paid")
TENANTS = ("", "acme", "bolt", "cargo", "delta")
SERIAL_KEYS = tuple(f"in_{number:02}" for number in range(12))
EVENTS = 300
NOW = datetime.now(UTC)
STEP = timedelta(minutes=5)
"""Between the times of two events: far more than a statement takes."""

STATUSES = ("received", "retrying", "processing", "failed", "processed")
CHANGING = {"lease", "lately", "due_in", "lease_left", "at", "is_earlier", "available"}
"""Columns that depend on the moment of the statement, or on chance."""

CONDITION = re.compile(r"\b(\w+\.)?consumer = :(?:consumer|name)\b")


class RolledBack(Exception):
    """Ends the transaction of a statement."""


def make_receipt(event: dict[str, Any], consumer: str, choose: random.Random, busy: set[Any]) -> dict[str, Any]:
    """A receipt of an event in a random state. At most one receipt of a serial key is being processed.

    Others wait for every source, type, tenant and key. CONSUMER waits for every other one of each.
    """
    status = choose.choices(STATUSES, (6, 6, 1, 1, 3))[0]
    serial_key = choose.choice([*[None] * len(SERIAL_KEYS), *SERIAL_KEYS])
    if consumer == CONSUMER:
        places = (SOURCES, event["source"]), (TYPES, event["type"]), (TENANTS, event["tenant"])
        if any(values.index(value) % 2 == 0 for values, value in places if value):
            status = "processed"
        elif serial_key is not None and SERIAL_KEYS.index(serial_key) % 2 == 0:
            serial_key = SERIAL_KEYS[1]
    key = (consumer, event["source"], serial_key)
    if status == "processing" and serial_key is not None:
        status = "received" if key in busy else status
        busy.add(key)
    waits = status in ("received", "retrying")
    received = event["received_at"]
    due = choose.choice([received + timedelta(seconds=30), received + 2 * EVENTS * STEP])
    return {
        "serial_key": serial_key,
        "status": status,
        "attempts": 0 if status == "received" else 1,
        "lease": 7,
        "crashes": int(waits and choose.random() < 0.3),
        "worker": "w_1" if status == "processing" else None,
        "leased_at": received + timedelta(seconds=1),
        "lease_until": NOW + timedelta(hours=1) if status == "processing" else None,
        "next_attempt_at": due if status == "retrying" else None,
        "unhandled_at": received + timedelta(seconds=2) if waits and choose.random() < 0.3 else None,
        "failed_at": received + timedelta(seconds=3) if status == "failed" else None,
        "processed_at": received + timedelta(seconds=3) if status == "processed" else None,
    }


def literal(value: Any) -> str:
    if isinstance(value, datetime):
        return f"'{rfc3339(value)}'"
    return "NULL" if value is None else repr(value)


def insert_events(database: str, seed: int) -> None:
    """Insert events with receipts of every consumer. Some events have none of CONSUMER, and some none of `audit`."""
    binary = "bytea" if database.startswith("postgresql") else "BLOB"
    rows, choose = [], random.Random(seed)
    busy: set[Any] = set()
    for number in range(EVENTS):
        event = {
            "source": choose.choice(SOURCES),
            "tenant": choose.choice(TENANTS),
            "type": choose.choice(TYPES),
            "provider": "stripe",
            "event_id": f"evt_{number}",
            "received_at": NOW - (EVENTS - number) * STEP,
        }
        for offset, consumer in enumerate(("main", "audit", CONSUMER)):
            if consumer == "main" or choose.random() < 0.8:
                ids = {"id": 3 * number + 1 + offset, "main_id": None if consumer == "main" else 3 * number + 1}
                rows.append({**ids, "consumer": consumer, **event, **make_receipt(event, consumer, choose, busy)})
    columns = ", ".join(rows[0])
    values = ",\n".join(f"({', '.join(map(literal, row.values()))}, CAST('f' AS {binary}))" for row in rows)
    run_sql(database, f"INSERT INTO webhook_receipts ({columns}, fingerprint) VALUES {values}")
    payloads = f"SELECT id, CAST('[]' AS {binary}), '[]'"
    if database.startswith("postgresql"):
        run_sql(database, "CREATE TABLE older_payloads PARTITION OF webhook_payloads DEFAULT")
        columns, payloads = ", day", f"{payloads}, (received_at AT TIME ZONE 'UTC')::date"
        run_sql(database, f"SELECT setval('webhook_receipt_ids', {3 * EVENTS + 1})")
    else:
        columns = ""
    inserted = f"(receipt_id, body, headers{columns}) {payloads} FROM webhook_receipts WHERE main_id IS NULL"
    run_sql(database, f"INSERT INTO webhook_payloads {inserted}")


def insert_settings(database: str) -> None:
    """Insert a subscription, a rate and a handler of each consumer, and pauses of the others."""
    for number, name in enumerate((CONSUMER, *OTHERS)):
        subscription = f"('{name}', '{SOURCES[number % 2]}', '[]', '{{}}', 1)"
        run_sql(
            database,
            f"INSERT INTO webhook_consumers (name, source, patterns, settings, revision) VALUES {subscription}",
        )
        run_sql(database, f"INSERT INTO webhook_rates (consumer, tokens) VALUES ('{name}', {5 + number})")
        columns = "worker, consumer, source, pattern, matcher, is_projection"
        no = "false" if database.startswith("postgresql") else "0"
        run_sql(
            database, f"INSERT INTO webhook_handlers ({columns}) VALUES ('w_1', '{name}', 'github', '*', '*', {no})"
        )
    for name in OTHERS:
        run_sql(database, f"INSERT INTO webhook_pauses (source, consumer, actor) VALUES ('', '{name}', 'jane')")


def remove_others(database: str) -> None:
    """Leave the receipts of CONSUMER alone with the processed events that they belong to."""
    run_sql(database, "DELETE FROM webhook_receipts WHERE consumer = 'audit'")
    settled = "status = 'processed', next_attempt_at = NULL, unhandled_at = NULL, lease_until = NULL"
    run_sql(database, f"UPDATE webhook_receipts SET {settled} WHERE consumer = 'main'")
    for table, column in (
        ("pauses", "consumer"),
        ("rates", "consumer"),
        ("handlers", "consumer"),
        ("consumers", "name"),
    ):
        run_sql(database, f"DELETE FROM webhook_{table} WHERE {column} <> '{CONSUMER}'")


Calls = list[tuple[str, dict[str, Any]]]


def make_calls(store: Store, receipts: Mapping[str, list[int]]) -> dict[str, list[Calls]]:
    """Every statement that has `:consumer`, or a consumer's `:name`: with its parameters, in one or more ways.

    A statement may need another one before it.
    """
    dialect = store.database.executor.dialect
    keys = json.dumps([{"source": source, "key": key} for source in SOURCES for key in SERIAL_KEYS])
    tenants = json.dumps([{"source": source, "key": tenant} for source in SOURCES for tenant in TENANTS])
    types = json.dumps([{"source": source, "type": type_} for source in SOURCES for type_ in TYPES])
    rescued: list[dict[str, Any]] = [{"rescued": False}, {"rescued": True}]
    everything = {"since": dialect.time(NOW - 2 * EVENTS * STEP), "until": dialect.time(NOW)}
    lease = {
        "seconds": 30.0,
        "worker": "w_2",
        "floor": dialect.earliest,
        "skip_failed": dialect.texts([]),
        "limit": 500,
        "each": 100,
        **handled_parameters(dialect, None),
    }
    start: dict[str, Any] = {"source": "", "key": "", "most": 50, "after": dialect.earliest, "size": 500}
    one_type = {"source": "stripe", "type": TYPES[1], "size": 500}
    end = {"last": "9999-01-01T00:00:00Z", "last_source": "z", "last_key": "z", "types": types}
    pause: dict[str, Any] = {"source": "", "actor": "jane", "reason": None, "seconds": None}
    paused = ("pause", pause)
    backfill = {"sources": json.dumps(SOURCES), "limit": 500, **everything}
    page = {"after_time": everything["since"], "after_receipt": 0}
    rows = json.dumps([{"receipt": 3 * n + 1, "status": "received", "last_error": None} for n in range(EVENTS)])
    every = dialect.array(receipts["all"])
    ways: dict[str, list[dict[str, Any]]] = {
        "lease": [{**lease, **way, **tenant} for way in rescued for tenant in ({}, {"tenant": ""}, {"tenant": "acme"})],
        "lease_serial": [{**lease, **way, "keys": keys} for way in rescued],
        "lease_turn": [{**lease, **way, "keys": tenants, "source": "stripe", "key": "acme"} for way in rescued],
        "lease_listed": [{**lease, **way, "receipts": every} for way in rescued],
        "listed_receipts": [{"receipts": dialect.array(receipts[CONSUMER])}],
        "next_due": [lease],
        "due_window": [{**start, **lease}, {**start, **lease, "tenant": "acme"}],
        "release_strays": [{"worker": "w_1", "held": dialect.array([])}],
        "overdue": [{"seconds": 60.0, "limit": 500}, {"seconds": 60.0, "limit": 500, "most": 36_000.0}],
        "overdue_heads": [{"seconds": 60.0, "keys": keys}, {"seconds": 60.0, "keys": keys, "most": 36_000.0}],
        "serial_keys": [start],
        "waiting_tenants": [start],
        "waiting_types": [start],
        "waiting_serial_types": [start],
        "hold_unhandled": [{**start, **end}],
        "hold_unhandled_serial": [{**start, **end}],
        "unhandled_types": [start],
        "release_unhandled": [one_type],
        "ignore_unhandled": [{**one_type, "seconds": 60.0, "reason": "no handler"}],
        "backfill_page": [{**backfill, **page}],
        "backfill_count": [backfill],
        "backfill": [{"rows": rows}],
        "lock_backfilled_consumer": [{}],
        "create_bucket": [{"burst": 9.0}],
        "take_tokens": [{"wanted": 2, "rate": 0.0, "burst": 9.0}],
        "set_tokens": [{"tokens": 1.0, "at": rfc3339(NOW)}],
        "refund_tokens": [{"tokens": 1.0, "burst": 9.0}],
        "pause": [pause],
        "find_receipts": [{"limit": 1000}],
        "replay_page": [{"after": 0, "limit": 1000}],
        "replay_counts": [{"after": 0, "limit": 1000}],
        "open_receipt_counts": [{"limit": 1000}],
        "end_receipts": [{"limit": 1000, "reason": "removed"}],
        "remove_consumer": [{}],
        "remove_consumer_handlers": [{}],
        "remove_consumer_rate": [{}],
    }
    calls = {name: [[(name, parameters)] for parameters in each] for name, each in ways.items()}
    calls["resume"] = [[paused, ("resume", pause)]]
    calls["resume_by_actor"] = [[paused, ("resume_by_actor", pause)]]
    calls["remove_consumer_pause"] = [[paused, ("remove_consumer_pause", {})]]
    return calls


def parameters_of(dialect: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the parameters that the statement has in this dialect."""
    known = set(re.findall(r"(?<!:):([a-z_]+)\b", queries.load(dialect)[name]))
    every = {"consumer": CONSUMER, "name": CONSUMER, **given}
    return {key: value for key, value in every.items() if key in known}


def comparable(rows: list[Any], without: Set[str] = frozenset()) -> list[tuple[Any, ...]]:
    """The rows without what depends on the moment: of times, only whether they are set."""
    compared = []
    for row in rows:
        columns = [key for key in row.keys() if key not in CHANGING | without]  # noqa: SIM118 - it iterates over values
        times = {key for key in columns if key.endswith("_at") and key != "received_at" and row[key] is not None}
        compared.append(tuple("a time" if key in times else row[key] for key in columns))
    return sorted(compared, key=repr)


async def read_state(run: Run, consumers: tuple[str, ...]) -> dict[str, Any]:
    """What the statements of these consumers can change."""
    state: dict[str, Any] = {}
    for consumer in consumers:
        receipts = await run("find_receipts", {"consumer": consumer, "limit": 1000})
        state[f"receipts of {consumer}"] = comparable(receipts, without={"receipt", "main_id"})
        tokens = await run("take_tokens", {"consumer": consumer, "wanted": 0, "rate": 0.0, "burst": 99.0})
        state[f"tokens of {consumer}"] = [row["available"] for row in tokens]
    for name, column in (("pauses", "consumer"), ("live_handlers", "consumer"), ("consumers", "name")):
        rows = await run(name, {})
        state[name] = sorted(tuple(row[key] for key in (column, "source")) for row in rows if row[column] in consumers)
    return state


REFUSED = "refused"
Outcome = tuple[list[tuple[Any, ...]], dict[str, Any]]


async def run_calls(store: Store, calls: Calls) -> tuple[Outcome, bool]:
    """Run statements and roll them back.

    Returns the rows and the state of CONSUMER afterwards, and whether the others are unchanged.
    """
    executor = store.database.executor
    outcome: tuple[Outcome, bool] | None = None

    async def work(run: Run) -> None:
        nonlocal outcome
        before = await read_state(run, OTHERS)
        for name, given in calls:
            rows = await run(name, parameters_of(executor.dialect.name, name, given))
        unchanged = await read_state(run, OTHERS) == before
        if name == "next_due":
            due = datetime.now(UTC) + timedelta(seconds=rows[0][0])
            rows = [{"due": round((due - NOW) / STEP)}]
        outcome = (comparable(rows), await read_state(run, (CONSUMER,))), unchanged
        raise RolledBack

    try:
        await executor.transaction(work)
    except RolledBack:
        assert outcome is not None
        return outcome
    except (RowRefused, StoreUnavailable) as error:
        return ([(REFUSED, str(error))], {}), True
    raise AssertionError("the transaction must be rolled back")


Outcomes = dict[str, list[tuple[Outcome, bool]]]
"""What each way to run a statement did."""


async def run_all(store: Store, calls: Mapping[str, list[Calls]]) -> Outcomes:
    outcomes = {name: [await run_calls(store, way) for way in ways] for name, ways in calls.items()}
    assert [name for name, ways in outcomes.items() for (rows, _), _ in ways if rows and rows[0][0] == REFUSED] == []
    return outcomes


def mistakes(outcomes: Outcomes, alone: Outcomes) -> dict[str, str]:
    """The statements that changed other consumers or depend on them, each with what it did."""
    found = {}
    for name, ways in outcomes.items():
        for (outcome, unchanged), (expected, _) in zip(ways, alone[name.partition(" ")[0]], strict=True):
            if not unchanged:
                found[name] = "changed another consumer"
            elif outcome != expected:
                found[name] = f"returned or left {outcome}, and without other consumers {expected}"
    return found


@pytest.fixture
def prepared(store: Store, database: str, seed: int) -> dict[str, list[Calls]]:
    """A database with every consumer, and the statements to run on it."""
    insert_events(database, seed)
    insert_settings(database)
    receipts: dict[str, list[int]] = {"all": []}
    for id, consumer in run_sql(database, "SELECT id, consumer FROM webhook_receipts"):
        receipts["all"].append(id)
        receipts.setdefault(consumer, []).append(id)
    known = queries.load(store.database.executor.dialect.name)
    return {name: ways for name, ways in make_calls(store, receipts).items() if name in known}


@pytest.mark.parametrize("seed", [1])
async def test_statement_of_a_consumer_does_not_depend_on_other_consumers_nor_change_them(
    store: Store, database: str, prepared: dict[str, list[Calls]]
) -> None:
    with_others = await run_all(store, prepared)
    remove_others(database)
    assert mistakes(with_others, await run_all(store, prepared)) == {}


async def test_every_statement_of_a_consumer_is_run(store: Store) -> None:
    dialect = store.database.executor.dialect.name
    loaded = queries.load(dialect)
    run = set(make_calls(store, {"all": [], CONSUMER: []})) & set(loaded)
    assert run == {name for name, sql in loaded.items() if ":consumer" in sql or CONDITION.search(sql)} | {
        "remove_consumer"
    }, "make_calls has the parameters of each statement with :consumer"


@pytest.mark.torture
@pytest.mark.parametrize("seed", [1])
async def test_statement_that_lacks_one_of_its_conditions_is_noticed(
    store: Store, database: str, prepared: dict[str, list[Calls]], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = queries.load(store.database.executor.dialect.name)
    without: Outcomes = {}
    del prepared["end_receipts"]  # each of its conditions stands twice, and open_receipt_counts has the same ones
    for name, ways in prepared.items():
        sql = loaded[name]
        for number, condition in enumerate(CONDITION.finditer(sql)):
            anyone = f"{condition[1] or ''}consumer <> ''"
            with monkeypatch.context() as patch:
                patch.setitem(loaded, name, sql[: condition.start()] + anyone + sql[condition.end() :])
                queries.statement.cache_clear()
                without[f"{name} {number}"] = [await run_calls(store, way) for way in ways]
    queries.statement.cache_clear()
    assert len(without) > 40
    remove_others(database)
    noticed = mistakes(without, await run_all(store, prepared))
    assert sorted(set(without) - set(noticed)) == []
