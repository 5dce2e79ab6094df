"""The pytest fixtures, as the pytest of a user's project runs them."""

import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.servers import Postgres
from tests.support.user_project import run_pytest
from tests.support.waiting import wait_until

HOOKS = """
from oncehook import Event, Inbox

inbox = Inbox("sqlite:///never-opened.db")
inbox.source("stripe", secrets=["whsec_test"])
seen = []

@inbox.on("stripe", "invoice.paid")
async def paid(event: Event) -> None:
    seen.append(event.id)
"""
TESTS = """
import hooks, pytest
from oncehook.testing import deliver, drain

def test_plain(oncehook):
    assert oncehook.deliver("stripe", type="invoice.paid", id="evt_1").outcome == (202, "accepted")
    assert [receipt.status for receipt in oncehook.drain()] == ["processed"]
    assert hooks.seen == ["evt_1"]

def test_separate_database(oncehook, oncehook_database):
    assert oncehook.deliver("stripe", id="evt_1").outcome == (202, "accepted")
    assert oncehook_database.startswith(SCHEME)

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_async(oncehook_inbox):
    async with oncehook_inbox.lifespan():
        assert (await deliver(oncehook_inbox, "stripe", type="invoice.paid")).status == 202
        (receipt,) = await drain(oncehook_inbox)
    assert receipt.status == "processed"
"""


def test_plugin_is_an_entry_point_of_the_installed_package() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    installed = metadata.entry_points(group="pytest11", name="oncehook")
    assert {entry.name: entry.value for entry in installed} == declared == {"oncehook": "pytest_oncehook"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_fixtures_work_in_synchronous_and_async_tests(kind: str, tmp_path: Path, postgres: Postgres) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS)
    (tmp_path / "test_hooks.py").write_text(TESTS.replace("SCHEME", repr(kind + ":")))
    options = () if kind == "sqlite" else (f"--oncehook-postgres={postgres.url('postgres')}",)
    done = run_pytest(tmp_path, *options)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr
    assert not (tmp_path / "never-opened.db").exists()
    databases = "SELECT count(*) FROM pg_database WHERE datname LIKE 'oncehook_test_%'"
    wait_until(lambda: postgres.sql(databases) == "0", "every database of a test is dropped")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("ini", "sentence"),
    [
        ("", 'no inbox to test: set oncehook_inbox = "module:name"'),
        ("oncehook_inbox = hooks:nothing", "hooks has no Inbox named nothing"),
    ],
)
def test_fixture_without_an_inbox_says_what_to_configure(tmp_path: Path, ini: str, sentence: str) -> None:
    (tmp_path / "hooks.py").write_text(HOOKS)
    (tmp_path / "test_hooks.py").write_text("def test_plain(oncehook): ...")
    done = run_pytest(tmp_path, ini=ini)
    assert done.returncode == 1 and sentence in done.stdout, done.stdout


def test_plugin_imports_no_other_package_until_a_fixture_is_used() -> None:
    code = (
        "import json, pytest, sys; before = set(sys.modules); import pytest_oncehook; "
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert imported <= {"pytest_oncehook", "__future__"}
