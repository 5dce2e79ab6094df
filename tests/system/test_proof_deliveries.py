"""Deliveries under faults: small runs of `python -m proof.deliveries`, its plan, and violations that it must find."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from docs.generate import ROOT
from proof.deliveries.faults import LANES
from proof.deliveries.kinds import KINDS, MISDEEDS, missing_tests
from proof.deliveries.plan import MISDEEDS as PLANNED
from proof.deliveries.plan import Plan, make_plan
from proof.deliveries.senders import Answers
from proof.deliveries.tables import KEYS, TABLES
from proof.deliveries.verdict import problems_of
from proof.deliveries.world import World
from tests.support.events import make_claim
from tests.support.servers import run_sql, sqlite_file
from tests.support.stores import open_store

needs_linux = pytest.mark.skipif(not Path("/proc").exists(), reason="descriptors and limits are those of Linux")


def run_program(module: str, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "ONCEHOOK_PROOF_DIR": str(folder)}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@needs_linux
def test_small_run_on_sqlite_applies_its_faults_and_finds_nothing(tmp_path: Path) -> None:
    options = ("--database", "sqlite", "--deliveries", "300", "--rate", "150", "--kinds", "F1,F6,F14,F18,F22")
    done = run_program("proof.deliveries", tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    result = json.loads((tmp_path / "deliveries-sqlite.json").read_text())
    assert result["ok"] and result["acked"] == 300 and result["duplicates"] == 90
    assert {one["kind"] for one in result["applied"]} >= {"F1", "F14", "F18", "F22"}
    assert f"--seed {result['seed']}" in result["command"]


@needs_linux
def test_small_run_on_postgres_applies_its_faults_and_finds_nothing(tmp_path: Path) -> None:
    options = ("--deliveries", "300", "--rate", "150", "--kinds", "F8,F10,F17,F23")
    done = run_program("proof.deliveries", tmp_path, *options)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    result = json.loads((tmp_path / "deliveries.json").read_text())
    assert result["ok"] and result["acked"] == 300
    assert {one["kind"] for one in result["applied"]} == {"F8", "F10", "F17", "F23"}
    assert result["lost_database_replies"] >= 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--kinds", "F1,F99"), "F99 is no kind of fault: expected F1 to F26, such as F1,F8"),
        (("--deliveries", "10"), "10 is too few: expected at least 100"),
        (("--kills", "3", "--database", "sqlite"), "--kills needs --database postgres"),
    ],
)
def test_wrong_option_is_explained(tmp_path: Path, options: tuple[str, ...], expected: str) -> None:
    done = run_program("proof.deliveries", tmp_path, *options)
    assert done.returncode == 2 and expected in done.stderr


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


@pytest.fixture
async def finished(tmp_path: Path) -> tuple[World, Plan, Answers]:
    """What a faultless run of two events leaves."""
    plan = Plan(1, (0, 1, 1))
    world = World(sqlite_file(tmp_path / "inbox.db"), tmp_path)
    (tmp_path / "serve-1.toml").write_text("")
    async with open_store(world.database) as store:
        await store.claims.insert([make_claim(f"evt_{number}", body=plan.body(number)) for number in range(2)])
    for statement in TABLES:
        run_sql(world.database, statement.format(key=KEYS["sqlite"]))
    run_sql(world.database, "INSERT INTO ledger VALUES ('evt_0'), ('evt_1')")
    run_sql(world.database, "INSERT INTO history (object_id, version) VALUES ('sub_0', 1), ('sub_0', 2)")
    return world, plan, Answers(acked={0, 1})
