"""The PostgreSQL dialect."""

import subprocess
import sys
from datetime import UTC, date, datetime

import pytest

from oncehook.store.postgres.dialect import POSTGRES, array, storable_json


@pytest.mark.parametrize(
    ("values", "text"), [([], "{}"), ([1, 2, 3], "{1,2,3}"), ([date(2026, 11, 15)], "{2026-11-15}")]
)
def test_array_is_the_text_of_a_postgresql_array(values: list[object], text: str) -> None:
    assert array(values) == text


def test_json_replaces_nul_which_postgresql_cannot_store() -> None:
    assert storable_json({"a": "x\x00y"}) == '{"a":"x\\ufffdy"}'


def test_pattern_is_written_for_like() -> None:
    assert POSTGRES.pattern("invoice_*.100%") == r"invoice\_%.100\%"


def test_time_is_passed_to_the_driver_unchanged() -> None:
    moment = datetime(2026, 11, 15, tzinfo=UTC)
    assert POSTGRES.time(moment) is moment and POSTGRES.time(None) is None


def test_database_has_no_file() -> None:
    assert POSTGRES.file("postgresql://host/db") is None


@pytest.mark.system
def test_dialect_is_imported_without_the_driver() -> None:
    script = "import sys, oncehook.store.postgres.dialect; sys.exit('asyncpg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=30).returncode == 0
