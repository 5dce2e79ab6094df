"""SIGKILL at named points of real processes: another process goes on, and every guarantee holds."""

from pathlib import Path

import pytest

from oncehook.testing.crash_points import CRASH_POINTS
from tests.support.crashes import crash_at, crash_in_turn, points_on
from tests.support.servers import run_sql

pytestmark = pytest.mark.anyio

SAMPLE = {"sqlite": ("R10", "W13", "O3"), "postgresql": ("R11", "W3", "S2", "W12")}
RUNS = [("kill", 0), ("kill", 1), ("kill", 2), ("cancel", 0), ("disconnect", 0)]


async def test_processes_that_crash_one_after_another_lose_and_double_nothing(database: str, tmp_path: Path) -> None:
    await crash_in_turn(database, tmp_path, SAMPLE[database.partition(":")[0]])


@pytest.mark.torture
@pytest.mark.parametrize(("fault", "point", "seed"), [(fault, p.name, n) for fault, n in RUNS for p in CRASH_POINTS])
async def test_crash_at_every_point(point: str, fault: str, seed: int, database: str, tmp_path: Path) -> None:
    found = [row for row in points_on(database) if row.name == point]
    if not found:
        pytest.skip("there is no such point on this database")
    if fault == "disconnect" and database.startswith("sqlite"):
        pytest.skip("SQLite has no connection that could be lost")
    if found[0].part == "migrate":
        drop_schema(database)
    await crash_at(database, tmp_path, found[0], fault, seed)


def drop_schema(database: str) -> None:
    """Make the database as empty as before its first migration."""
    if database.startswith("sqlite"):
        Path(database.removeprefix("sqlite:///")).unlink()
    else:
        run_sql(database, "DROP SCHEMA public CASCADE")
        run_sql(database, "CREATE SCHEMA public")
