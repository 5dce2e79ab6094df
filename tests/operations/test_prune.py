"""Pruning and forgetting: what goes, what never goes, and that the door does not notice."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import oncehook.operations.prune as prune_module
from oncehook import Inbox
from oncehook.cli import main
from oncehook.config.configuration import load
from oncehook.config.settings import Horizon, Settings, SourceSettings
from oncehook.model.errors import ConfigurationError, StoreUnavailable
from oncehook.model.rows import Prunable
from oncehook.model.states import State
from oncehook.model.values import as_duration, duration
from oncehook.operations.forget import find_mentions, forget, mentions
from oncehook.operations.prune import Pruned, PruneLoop, cutoffs, horizon, prune
from oncehook.providers import definition as providers
from oncehook.store import make_store
from oncehook.store.store import Store
from oncehook.testing import deliver
from tests.support.ages import PARTITIONS, create_day, set_age
from tests.support.events import Rows, stripe_body
from tests.support.servers import Postgres, ask
from tests.support.waiting import eventually
from tests.support.work import claim

pytestmark = pytest.mark.anyio

DAY = 86400.0
KEEP_30 = [Horizon("stripe", 30 * DAY, 30 * DAY)]


@pytest.fixture
async def store(database: str) -> AsyncIterator[Store]:
    store = make_store(Settings(database=database))
    await store.open()
    yield store
    await store.close()


def ids(rows: Rows) -> list[str]:
    return [row[0] for row in rows("SELECT event_id FROM webhook_receipts ORDER BY event_id")]


def with_payload(rows: Rows) -> list[str]:
    sql = "SELECT r.event_id FROM webhook_payloads p JOIN webhook_receipts r ON r.id = p.receipt_id ORDER BY 1"
    return [row[0] for row in rows(sql)]


def count(rows: Rows, table: str) -> int:
    number: int = rows(f"SELECT count(*) FROM {table}")[0][0]
    return number


async def pruned(store: Store, horizons: list[Horizon] = KEEP_30) -> Pruned:
    done = await prune(store, horizons)
    assert done is not None
    return done


# -- horizons -------------------------------------------------------------------------------------------------------


def stripe_horizon(source: dict[str, Any] | None = None, **settings: Any) -> Horizon:
    given = {name: duration(value) for name, value in settings.items()}
    own = {name: duration(value) for name, value in (source or {}).items()}
    return horizon("shop", SourceSettings(**own), providers.built_in("stripe"), Settings(**given))


def test_by_default_receipts_and_payloads_are_kept_for_thirty_days() -> None:
    assert stripe_horizon() == Horizon("shop", 30 * DAY, 30 * DAY)


def test_a_provider_that_retries_for_longer_raises_the_default() -> None:
    definition = {"title": "Slow", "event": {"id": "id", "type": "type"}, "retries": {"horizon": "30d"}}
    definition["signatures"] = [{"algorithm": "hmac-sha256", "header": "X-Sig"}]
    slow = providers.find("slow", {"slow": definition})
    assert horizon("slow", SourceSettings(), slow, Settings()).receipts == 35 * DAY
    with pytest.raises(ConfigurationError, match="the minimum is 35d"):
        horizon("slow", SourceSettings(), slow, Settings(dedupe_window=duration("30d")))


@pytest.mark.parametrize(
    ("settings", "source", "where"),
    [
        ({"dedupe_window": "7d"}, {}, "dedupe_window is 7d"),
        ({}, {"dedupe_window": "36h"}, "sources.shop.dedupe_window is 36h"),
        ({"dedupe_window": "60d"}, {"dedupe_window": 0}, "sources.shop.dedupe_window is 0s"),
    ],
)
def test_a_window_that_is_set_too_short_is_refused_with_the_smallest_allowed(
    settings: dict[str, Any], source: dict[str, Any], where: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{where}: .*minimum is 8d$"):
        stripe_horizon(source, **settings)


def test_the_smallest_allowed_is_allowed_and_a_source_may_have_its_own() -> None:
    assert stripe_horizon(dedupe_window="8d").receipts == 8 * DAY
    assert stripe_horizon({"dedupe_window": "90d"}, dedupe_window="8d").receipts == 90 * DAY
    assert stripe_horizon({"payload_retention": "1d"}, payload_retention="9d").payloads == DAY


def test_a_payload_never_outlives_its_receipt() -> None:
    assert stripe_horizon(dedupe_window="10d") == Horizon("shop", 10 * DAY, 10 * DAY)
    assert stripe_horizon(dedupe_window="10d", payload_retention="90d").payloads == 10 * DAY


def test_settings_are_read_from_the_file_and_the_environment(in_folder: Path) -> None:
    (in_folder / "oncehook.toml").write_text(
        'dedupe_window = "40d"\n[sources.stripe]\nsecrets = ["x"]\npayload_retention = "2h"\n'
    )
    configuration = load(environ={"ONCEHOOK_PAYLOAD_RETENTION": "5d"})
    assert configuration.settings.dedupe_window == 40 * DAY
    assert configuration.settings.payload_retention == 5 * DAY
    assert configuration.sources["stripe"].payload_retention == 7200


@pytest.mark.parametrize("text", ["8d", "195h", "90m", "45s", "0s"])
def test_a_duration_is_told_as_it_would_be_written(text: str) -> None:
    assert as_duration(duration(text)) == text


def test_a_long_horizon_ends_with_the_day_and_a_short_one_is_exact() -> None:
    now = datetime(2026, 11, 15, 21, 11, 4, tzinfo=UTC)
    receipts, payloads = cutoffs([Horizon("a", 30 * DAY, 3600), Horizon("b", 1e13, 2 * DAY)], now)
    assert receipts == {"a": datetime(2026, 10, 16, tzinfo=UTC), "b": datetime(1970, 1, 1, tzinfo=UTC)}
    assert payloads == {"a": datetime(2026, 11, 15, 20, 11, 4, tzinfo=UTC), "b": datetime(2026, 11, 13, tzinfo=UTC)}


# -- receipts -------------------------------------------------------------------------------------------------------


async def test_an_old_receipt_goes_with_its_payload_its_deliveries_and_its_attempts(
    store: Store, database: str, rows: Rows
) -> None:
    old, new = await claim(store, "evt_old", "evt_new")
    for receipt in (old, new):
        fingerprint = "x'00'" if database.startswith("sqlite") else "'\\x00'"
        same = "1" if database.startswith("sqlite") else "true"
        ask(
            database,
            "INSERT INTO webhook_deliveries (receipt_id, fingerprint, same_body) "
            f"VALUES ({receipt}, {fingerprint}, {same})",
        )
        ask(
            database,
            "INSERT INTO webhook_past_attempts (receipt_id, number, started_at, outcome) "
            f"VALUES ({receipt}, 1, '2026-01-01T00:00:00Z', 'processed')",
        )
    set_age(database, "evt_old", 32, "processed")
    set_age(database, "evt_new", 29, "processed")
    done = await pruned(store)
    assert done.receipts == {"stripe": 1}
    assert ids(rows) == ["evt_new"]
    for table in ("webhook_payloads", "webhook_deliveries", "webhook_past_attempts"):
        assert rows(f"SELECT receipt_id FROM {table}") == [(new,)], table


@pytest.mark.parametrize("status", list(State))
async def test_only_what_is_finished_goes_however_old(store: Store, database: str, rows: Rows, status: State) -> None:
    await claim(store, "evt_1")
    set_age(database, "evt_1", 400, status.value)
    await pruned(store)
    goes = status in (State.PROCESSED, State.IGNORED)
    assert ids(rows) == ([] if goes else ["evt_1"])
    assert count(rows, "webhook_payloads") == (0 if goes else 1)


async def test_an_event_older_than_its_window_is_fresh_again_and_until_then_a_duplicate(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    body = stripe_body("evt_1")
    async with inbox.lifespan():
        assert (await deliver(inbox, "stripe", body)).outcome == (202, "accepted")
        set_age(database, "evt_1", 29, "processed")
        await pruned(inbox._runtime.store)
        assert (await deliver(inbox, "stripe", body)).outcome == (200, "duplicate")
        ((first,),) = rows("SELECT id FROM webhook_receipts")
        set_age(database, "evt_1", 32)
        await pruned(inbox._runtime.store)
        assert (await deliver(inbox, "stripe", body)).outcome == (202, "accepted")
    ((second, status),) = rows("SELECT id, status FROM webhook_receipts")
    assert second != first and status == "received"
    assert rows("SELECT receipt_id, body FROM webhook_payloads") == [(second, body)]


async def test_each_source_has_its_own_window_and_an_unknown_one_is_left_alone(
    store: Store, database: str, rows: Rows
) -> None:
    for source in ("short", "long", "removed"):
        await claim(store, f"evt_{source}", source=source)
        set_age(database, f"evt_{source}", 50, "processed")
    done = await pruned(store, [Horizon("short", 40 * DAY, 40 * DAY), Horizon("long", 60 * DAY, 60 * DAY)])
    assert done.receipts == {"short": 1}
    assert ids(rows) == ["evt_long", "evt_removed"]
    assert with_payload(rows) == ["evt_long", "evt_removed"]


async def test_many_go_in_small_steps(store: Store, database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prune_module, "BATCH", 10)
    await claim(store, *(f"evt_{n:03}" for n in range(45)))
    for n in range(0, 45, 5):  # one in five is a dead letter, between the others
        set_age(database, f"evt_{n:03}", 40, "failed")
    for n in range(45):
        if n % 5:
            set_age(database, f"evt_{n:03}", 40 + n % 3, "processed")
    told: list[int] = []
    done = await prune(store, KEEP_30, progress=lambda so_far: told.append(so_far.receipts.total()))
    assert done is not None and done.receipts == {"stripe": 36}
    assert told == [10, 20, 30, 36]
    assert ids(rows) == [f"evt_{n:03}" for n in range(0, 45, 5)] == with_payload(rows)


# -- payloads -------------------------------------------------------------------------------------------------------


async def test_dedupe_goes_on_without_payloads(make_inbox: Callable[..., Inbox], database: str, rows: Rows) -> None:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        for name in ("evt_done", "evt_dead", "evt_young"):
            await deliver(inbox, "stripe", stripe_body(name))
        set_age(database, "evt_done", 9, "processed")
        set_age(database, "evt_dead", 9, "failed")
        set_age(database, "evt_young", 5, "processed")
        await pruned(inbox._runtime.store, [Horizon("stripe", 30 * DAY, 7 * DAY)])
        assert ids(rows) == ["evt_dead", "evt_done", "evt_young"]
        assert with_payload(rows) == ["evt_dead", "evt_young"]
        assert (await deliver(inbox, "stripe", stripe_body("evt_done"))).outcome == (200, "duplicate")
    ((receipt,),) = rows("SELECT id FROM webhook_receipts WHERE event_id = 'evt_done'")
    assert rows(f"SELECT count(*) FROM webhook_payloads WHERE receipt_id = {receipt}") == [(0,)]


async def test_sources_may_differ_in_their_retention(store: Store, database: str, rows: Rows) -> None:
    for source in ("short", "long"):
        await claim(store, f"evt_{source}", source=source)
        set_age(database, f"evt_{source}", 5, "processed")
    await pruned(store, [Horizon("short", 30 * DAY, 3600), Horizon("long", 30 * DAY, 20 * DAY)])
    assert ids(rows) == ["evt_long", "evt_short"]
    assert with_payload(rows) == ["evt_long"]


async def test_a_short_retention_is_exact(store: Store, database: str, rows: Rows) -> None:
    await claim(store, "evt_1", "evt_2")
    set_age(database, "evt_1", 61 / 1440, "processed")
    set_age(database, "evt_2", 59 / 1440, "processed")
    done = await pruned(store, [Horizon("stripe", 30 * DAY, 3600)])
    assert done.payloads == {"stripe": 1}
    assert with_payload(rows) == ["evt_2"]


# -- dry runs, interruptions, turns ---------------------------------------------------------------------------------


async def test_what_would_go_is_counted_and_stays(store: Store, database: str, rows: Rows) -> None:
    await claim(store, "evt_1", "evt_2", "evt_3", "evt_4")
    set_age(database, "evt_1", 40, "processed")
    set_age(database, "evt_2", 10, "processed")
    set_age(database, "evt_3", 40, "failed")
    horizons = [Horizon("stripe", 30 * DAY, 7 * DAY)]
    found = await store.retention.prunable(*cutoffs(horizons, await store.operations.now()))
    assert found == [Prunable("stripe", 1, 2)]
    assert count(rows, "webhook_receipts") == count(rows, "webhook_payloads") == 4
    await pruned(store, horizons)
    assert ids(rows) == ["evt_2", "evt_3", "evt_4"]
    found = await store.retention.prunable(*cutoffs(horizons, await store.operations.now()))
    assert found == [Prunable("stripe", 0, 0)]


async def test_an_interrupted_prune_is_resumed(
    store: Store, database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune_module, "BATCH", 5)
    await claim(store, *(f"evt_{n:02}" for n in range(20)))
    for n in range(20):
        set_age(database, f"evt_{n:02}", 40, "processed")

    def stop(done: Pruned) -> None:
        if done.receipts.total() >= 10:
            raise KeyError("pulled the plug")

    with pytest.raises(KeyError):
        await prune(store, KEEP_30, progress=stop)
    assert count(rows, "webhook_receipts") == 10
    done = await pruned(store)
    assert done.receipts.total() == 10
    assert ids(rows) == []


async def test_claims_go_on_while_much_is_pruned(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prune_module, "BATCH", 20)
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    async with inbox.lifespan():
        await claim(inbox._runtime.store, *(f"old_{n}" for n in range(400)))
        ask(database, "UPDATE webhook_receipts SET status = 'processed'")
        if database.startswith("sqlite"):
            ask(database, "UPDATE webhook_receipts SET received_at = '2020-01-01T00:00:00.000000Z'")
        else:
            ask(database, "UPDATE webhook_receipts SET received_at = '2020-01-01T00:00:00Z'")
            create_day(database, datetime(2020, 1, 1).date())
            ask(database, "UPDATE webhook_payloads SET day = '2020-01-01'")
        pruning = asyncio.create_task(prune(inbox._runtime.store, KEEP_30))
        answers = []
        while not pruning.done():
            answers.append((await deliver(inbox, "stripe", stripe_body(f"evt_{len(answers)}"))).outcome)
        done = await pruning
    assert done is not None and done.receipts == {"stripe": 400}
    assert answers and set(answers) == {(202, "accepted")}
    assert count(rows, "webhook_receipts") == count(rows, "webhook_payloads") == len(answers)


# -- whole days, on PostgreSQL --------------------------------------------------------------------------------------


@pytest.fixture
def address(postgres: Postgres) -> str:
    return postgres.database(migrated=True)


@pytest.fixture
async def pg(address: str) -> AsyncIterator[Store]:
    store = make_store(Settings(database=address))
    await store.open()
    yield store
    await store.close()


def days(address: str) -> set[str]:
    return {row[0] for row in ask(address, PARTITIONS)}


def tables(address: str) -> set[str]:
    return {
        row[0] for row in ask(address, "SELECT relname FROM pg_class WHERE relname ~ '^webhook_payloads_[0-9]{8}$'")
    }


def day_of(address: str, event_id: str) -> str:
    ((name,),) = ask(
        address,
        "SELECT p.tableoid::regclass::text FROM webhook_payloads p JOIN webhook_receipts r ON r.id = p.receipt_id "
        f"WHERE r.event_id = '{event_id}'",
    )
    return str(name)


# -- the prune_loop ----------------------------------------------------------------------------------------------------


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """The log lines of the prune_loop."""
    said: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(prune_module.signals, "emit", lambda line, **facts: said.append((line, facts)))
    return said


async def test_the_janitor_prunes_by_itself_and_says_so(
    store: Store, database: str, rows: Rows, lines: list[tuple[str, dict[str, Any]]]
) -> None:
    await claim(store, "evt_1", "evt_2")
    set_age(database, "evt_1", 40, "processed")
    prune_loop = PruneLoop(store, KEEP_30, first=0.0, every=0.02)
    prune_loop.start()
    await eventually(lambda: lines)
    assert ids(rows) == ["evt_2"]
    set_age(database, "evt_2", 40, "processed")
    await eventually(lambda: len(lines) > 1)
    await prune_loop.stop()
    assert ids(rows) == []
    assert [(line, facts["receipts"]) for line, facts in lines] == [("pruned", 1), ("pruned", 1)]


async def test_the_janitor_survives_a_database_that_is_away(
    store: Store, monkeypatch: pytest.MonkeyPatch, lines: list[tuple[str, dict[str, Any]]]
) -> None:
    now, away = store.operations.now, [True]

    async def sometimes() -> datetime:
        if away[0]:
            raise StoreUnavailable("the database is away")
        return await now()

    monkeypatch.setattr(store.operations, "now", sometimes)
    prune_loop = PruneLoop(store, KEEP_30, first=0.0, every=0.01)
    prune_loop.start()
    await eventually(lambda: len(lines) > 1)
    away[0] = False
    await eventually(lambda: prune_loop._runs > 1)
    await prune_loop.stop()
    assert {line for line, _ in lines} == {"prune_database_unavailable"}


async def test_the_janitor_looks_at_old_payloads_again_now_and_then(
    store: Store, database: str, rows: Rows, monkeypatch: pytest.MonkeyPatch, lines: Any
) -> None:
    """A dead letter that was replayed is behind what was looked at already."""
    monkeypatch.setattr(prune_module, "FULL_SCAN_EVERY", 3)
    await claim(store, "evt_1")
    set_age(database, "evt_1", 20, "failed")
    prune_loop = PruneLoop(store, [Horizon("stripe", 30 * DAY, 3600)])
    await prune_loop.prune_once()
    ask(database, "UPDATE webhook_receipts SET status = 'processed'")
    while with_payload(rows):
        assert prune_loop._runs < 5
        await prune_loop.prune_once()


# -- forgetting -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b'{"email": "Jane@Example.com"}', True),
        (b'{"email": "jane\\u0040example.com"}', True),
        (b"email=jane%40example.com&x=1", True),
        (b'{"email": "mary@example.com"}', False),
        (b"\xff\xfe jane@example.com", True),
    ],
)
def test_an_address_is_found_however_it_is_written(body: bytes, found: bool) -> None:
    assert mentions(body, "jane@EXAMPLE.com") is found


async def test_forgetting_keeps_dedupe_and_leaves_no_trace_of_the_body(
    make_inbox: Callable[..., Inbox], database: str, rows: Rows
) -> None:
    inbox = make_inbox(worker=False)
    inbox.source("stripe", secrets=["whsec_test"])
    jane = stripe_body("evt_jane", customer_email="jane@example.com", note="Zanzibar-4711" * 20)
    mary = stripe_body("evt_mary", customer_email="mary@example.com")
    async with inbox.lifespan():
        for body in (jane, mary):
            await deliver(inbox, "stripe", body)
        ask(
            database,
            "UPDATE webhook_receipts SET object_id = 'jane@example.com', last_error = 'no Jane@Example.com here' "
            "WHERE event_id = 'evt_jane'",
        )
        found = [
            receipt async for receipt, matches in find_mentions(inbox._runtime.store, "jane@example.com") if matches
        ]
        assert await forget(inbox._runtime.store, found, actor="me@here", address="jane@example.com") == 1
        assert (await deliver(inbox, "stripe", jane)).outcome == (200, "duplicate")
        assert with_payload(rows) == ["evt_mary"]
        assert rows("SELECT object_id, last_error FROM webhook_receipts WHERE event_id = 'evt_jane'") == [
            (None, "(erased)")
        ]
        ((actor, action, detail),) = rows("SELECT actor, action, detail FROM webhook_audit")
        assert (actor, action) == ("me@here", "forget")
        assert json.loads(detail)["receipts"] == found and "jane" not in detail
        if database.startswith("sqlite"):
            assert_nowhere(Path(database.removeprefix("sqlite:///")), b"Zanzibar-4711", b"jane@example.com")


def assert_nowhere(file: Path, *secrets: bytes) -> None:
    for part in (file, file.with_name(file.name + "-wal")):
        content = part.read_bytes() if part.exists() else b""
        for secret in secrets:
            assert secret not in content, part


async def test_forgetting_an_object_keeps_its_id(store: Store, rows: Rows) -> None:
    await claim(store, "evt_1", "evt_2", object_id="in_7")
    await claim(store, "evt_3", object_id="in_8")
    found = await store.retention.with_object("in_7")
    assert await forget(store, found, actor="me@here", object_id="in_7") == 2
    assert with_payload(rows) == ["evt_3"]
    assert rows("SELECT count(*) FROM webhook_receipts WHERE object_id = 'in_7'") == [(2,)]
    assert await store.retention.with_object("in_7") == []


# -- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, in_folder: Path, database: str) -> Any:
    """Run a command as its entry point does: its exit code, and what it said on both."""
    (in_folder / "oncehook.toml").write_text(
        f'database = "{database}"\n[sources.stripe]\nsecrets = ["env:NOT_NEEDED_TO_PRUNE"]\n'
    )
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["oncehook", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int) and "Traceback" not in said.err
        return ended.value.code, said.out, said.err

    return call


@pytest.fixture
def aged(database: str) -> None:
    """An old processed event, an old dead letter, a young one, and an old one of a source that is gone."""

    async def fill() -> None:
        store = make_store(Settings(database=database))
        await store.open()
        await claim(store, "evt_old", "evt_dead", "evt_young")
        await claim(store, "evt_gone", source="gone", object_id="in_9")
        await store.close()

    asyncio.run(fill())
    set_age(database, "evt_old", 40, "processed")
    set_age(database, "evt_dead", 40, "failed")
    set_age(database, "evt_young", 3, "processed")
    set_age(database, "evt_gone", 40, "processed")


EVERYTHING = ["evt_dead", "evt_gone", "evt_old", "evt_young"]


def test_a_dry_run_says_what_would_go_and_leaves_everything(run: Any, aged: None, rows: Rows) -> None:
    code, out, err = run("prune", "--dry-run")
    assert code == 0 and "nothing was deleted" in out and "gone" in err
    code, out, _ = run("prune", "--dry-run", "--json")
    assert (code, [json.loads(line) for line in out.splitlines()]) == (
        0,
        [{"source": "stripe", "receipts": 1, "payloads": 1, "dedupe_window": "30d", "payload_retention": "30d"}],
    )
    assert ids(rows) == with_payload(rows) == EVERYTHING


def test_pruning_by_hand(run: Any, aged: None, rows: Rows) -> None:
    code, out, err = run("prune")
    assert code == 0 and "skipped: gone" in err
    assert ids(rows) == ["evt_dead", "evt_gone", "evt_young"]
    assert run("prune", "--removed-sources")[0] == 0
    assert ids(rows) == ["evt_dead", "evt_young"]
    code, out, _ = run("prune", "--removed-sources")
    assert code == 0 and "nothing to delete" in out


def test_a_window_that_is_too_short_stops_the_command(run: Any, aged: None, rows: Rows, in_folder: Path) -> None:
    file = in_folder / "oncehook.toml"
    file.write_text(file.read_text() + 'dedupe_window = "1d"\n')
    code, _, err = run("prune")
    assert code == 2 and "sources.stripe.dedupe_window is 1d" in err and "minimum is 8d" in err
    assert ids(rows) == EVERYTHING


def test_forgetting_by_hand(run: Any, aged: None, rows: Rows) -> None:
    assert run("forget", "--object", "in_0", "--yes")[0] == 1
    assert run("forget", "--object", "in_9")[0] == 2  # nobody is there to be asked
    assert run("forget")[0] == run("forget", "--object", "x", "--address", "y")[0] == 2
    assert with_payload(rows) == EVERYTHING
    code, out, _ = run("forget", "--object", "in_9", "--yes")
    assert code == 0 and "erased 1 payload;" in out
    assert with_payload(rows) == ["evt_dead", "evt_old", "evt_young"]
    assert ids(rows) == EVERYTHING
    assert run("forget", "--address", "EVT_OLD", "--yes")[0] == 0
    assert with_payload(rows) == ["evt_dead", "evt_young"]
    ((actor,), _) = rows("SELECT actor FROM webhook_audit ORDER BY id")
    assert "@" in actor
