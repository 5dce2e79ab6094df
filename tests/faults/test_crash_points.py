"""SIGKILL at named points of real processes: another process goes on, and every guarantee holds."""

from pathlib import Path

import pytest

from oncehook.testing.crash_points import CRASH_POINTS
from tests.support.crashes import crash_at, points_on

pytestmark = pytest.mark.anyio


@pytest.mark.torture
@pytest.mark.parametrize("fault", ["kill", "cancel", "disconnect"])
@pytest.mark.parametrize("point", [point.name for point in CRASH_POINTS])
async def test_crash_at_every_point(
    point: str, fault: str, database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    found = [row for row in points_on(database) if row.name == point]
    if not found:
        pytest.skip("there is no such point on this database")
    await crash_at(database, tmp_path, found[0], fault)
