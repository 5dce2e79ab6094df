"""The example project for Django passes its own tests, on SQLite and on PostgreSQL."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.servers import Postgres


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_example_project_passes_its_tests(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = tmp_path / "django_shop"
    shutil.copytree(ROOT / "examples/django_shop", folder, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEHOOK_")}
    if kind == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        environment |= {"SHOP_POSTGRES": "postgres", "PGHOST": "127.0.0.1", "PGPORT": str(server.port)}
        environment |= {"PGUSER": server.user}
    done = subprocess.run(
        [sys.executable, "-W", "error", "manage.py", "test", "--noinput"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0 and "Ran 6 tests" in done.stderr, done.stdout + done.stderr
