"""Deliveries under faults: small runs of `python -m proof.deliveries`, its plan, and violations that it must find."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from proof.deliveries.__main__ import read_options
from proof.deliveries.kinds import KINDS, MISDEEDS, missing_tests
from proof.deliveries.plan import MISDEEDS as PLANNED
from proof.deliveries.plan import Plan, make_plan
from proof.deliveries.schedule import LANES
from proof.deliveries.senders import Answers
from proof.deliveries.tables import KEYS, TABLES
from proof.deliveries.verdict import check_answers, check_fsck, check_stored, check_work
from proof.deliveries.world import World
from tests.support import ROOT
from tests.support.events import make_claim
from tests.support.servers import run_sql, sqlite_file
from tests.support.stores import open_store

DISK_FAULTS = {"F13", "F14"} if shutil.which("cc") else set()
"""Those need a C compiler."""

needs_linux = pytest.mark.skipif(not Path("/proc").exists(), reason="descriptors and limits are those of Linux")


def run_program(module: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "ONCEHOOK_PROOF_DIR": str(folder)}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.rest
@needs_linux
@pytest.mark.timeout(300)  # seconds on a free machine
def test_small_run_on_sqlite_applies_its_faults_and_finds_nothing(tmp_path: Path) -> None:
    options = ("--database", "sqlite", "--deliveries", "300", "--rate", "150", "--kinds", "F1,F6,F14,F18,F22")
    done = run_program("proof.deliveries", tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    result = json.loads((tmp_path / "deliveries-sqlite.json").read_text())
    assert result["ok"] and result["acked"] == 300 and result["duplicates"] == 90
    assert {one["kind"] for one in result["applied"]} >= {"F1", "F18", "F22"} | (DISK_FAULTS & {"F14"})
    assert f"--seed {result['seed']}" in result["command"]


@needs_linux
@pytest.mark.rest
@pytest.mark.timeout(300)
def test_small_run_on_postgres_applies_its_faults_and_finds_nothing(tmp_path: Path) -> None:
    options = ("--deliveries", "300", "--rate", "150", "--kinds", "F10,F13,F14,F17")
    done = run_program("proof.deliveries", tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    result = json.loads((tmp_path / "deliveries.json").read_text())
    assert result["ok"] and result["acked"] == 300
    assert {one["kind"] for one in result["applied"]} == {"F10", "F17"} | DISK_FAULTS
    assert result["lost_database_replies"] >= 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--kinds", "F1,F99"), "F99 is not a kind of fault: expected F1 to F26, such as F1,F8"),
        (("--deliveries", "10"), "expected a number of at least 100, got '10'"),
        (("--kills", "3", "--database", "sqlite"), "--kills needs --database postgres"),
    ],
)
def test_wrong_option_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], expected: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["deliveries", *options])
    with pytest.raises(SystemExit) as ended:
        read_options()
    assert ended.value.code == 2 and expected in capsys.readouterr().err


def test_plan_has_its_shares_of_duplicates_and_of_events_out_of_order() -> None:
    plan = make_plan(7, 20_000)
    assert len(plan.deliveries) == 20_000 and set(plan.deliveries) == set(range(plan.events))
    assert plan.duplicates == 6_000 and plan.reordered >= 2_000
    assert plan == make_plan(7, 20_000) != make_plan(8, 20_000)
    assert {json.loads(plan.body(number))["misdeed"] for number in plan.misdeeds} == set(PLANNED)


def test_every_kind_of_fault_is_shown_somewhere() -> None:
    assert list(missing_tests()) == [], "kinds.py names tests that do not exist"
    assert len({kind.name for kind in KINDS}) == 26
    assert [kind.name for kind in KINDS if not kind.runs and not kind.tests] == []
    for database in ("postgres", "sqlite"):
        applied = {fault.kind for lane in LANES for fault in lane if getattr(fault, database)}
        applied |= MISDEEDS.keys() - ({"F17"} if database == "sqlite" else set()) | {"F6"}
        assert applied == {kind.name for kind in KINDS if database in kind.runs}
    assert sum("postgres" in kind.runs for kind in KINDS) >= 20


# -- violations -----------------------------------------------------------------------------------------------------

PLAN = Plan(1, (0, 1, 1))
DAMAGE = {
    "DELETE FROM ledger WHERE event_id = 'evt_0'": "1 events were not applied, such as ['evt_0']",
    "INSERT INTO ledger VALUES ('evt_1')": "1 events were applied twice, such as ['evt_1']",
    "UPDATE history SET version = 3 WHERE version = 1": "sub_0 went from version 3 to 2",
    "DELETE FROM history WHERE version = 2": "1 objects do not have their newest version, such as ['sub_0']",
    "UPDATE accounts SET bookings = 1 WHERE id = 0": "the accounts have [(1,), (0,)] bookings instead of 0",
    "UPDATE webhook_receipts SET status = 'received'": "events are stuck: {'received': 2}",
    "UPDATE webhook_payloads SET body = x'00' WHERE receipt_id = 1": (
        "1 acked events are lost or have another body, such as ['evt_0']"
    ),
    "DELETE FROM webhook_receipts WHERE id = 2": "1 acked events are lost or have another body, such as ['evt_1']",
}


@pytest.fixture(scope="module")
def faultless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database that two events leave."""
    folder = tmp_path_factory.mktemp("faultless")
    database = sqlite_file(folder / "inbox.db")

    async def claim() -> None:
        async with open_store(database) as store:
            await store.claims.insert([make_claim(f"evt_{number}", body=PLAN.body(number)) for number in range(2)])

    asyncio.run(claim())
    for statement in TABLES:
        run_sql(database, statement.format(key=KEYS["sqlite"]))
    run_sql(database, "UPDATE webhook_receipts SET status = 'processed', processed_at = received_at")
    run_sql(database, "INSERT INTO ledger VALUES ('evt_0'), ('evt_1')")
    run_sql(database, "INSERT INTO history (object_id, version) VALUES ('sub_0', 1), ('sub_0', 2)")
    run_sql(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    return folder / "inbox.db"


@pytest.mark.parametrize("damage", ["", *DAMAGE])
def test_damage_is_found_and_a_faultless_database_is_not(faultless: Path, tmp_path: Path, damage: str) -> None:
    world = World(f"sqlite:///{shutil.copy(faultless, tmp_path / 'inbox.db')}", tmp_path)
    if damage:
        run_sql(world.database, damage)
    found = [*check_stored(world, Answers(acked={0, 1}), PLAN), *check_work(world, PLAN)]
    assert found == ([DAMAGE[damage]] if damage else [])


def test_responses_that_must_not_occur_are_found() -> None:
    assert list(check_answers(Answers(acked={0, 1}, accepted=Counter([0, 1])), PLAN)) == []
    odd = Answers(acked={0}, accepted=Counter([0, 0]), odd=["evt_1: 500"])
    assert list(check_answers(odd, PLAN)) == [
        "1 responses that must never occur, such as ['evt_1: 500']",
        "1 events were accepted twice, such as ['evt_0']",
    ]
    assert list(check_answers(Answers(acked={0}), PLAN)) == ["1 events were never acked"]


def test_violation_of_fsck_is_found(faultless: Path, tmp_path: Path) -> None:
    world = World(f"sqlite:///{shutil.copy(faultless, tmp_path / 'inbox.db')}", tmp_path)
    (tmp_path / "serve-1.toml").write_text('database = "sqlite:///elsewhere.db"\n')
    run_sql(world.database, "UPDATE webhook_receipts SET processed_at = NULL")
    assert ["fsck found violations" in problem for problem in check_fsck(world)] == [True]
