"""A sample of the benchmark: that it runs, measures every target and says what it measured. Not how fast it is."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import events
from tests.servers import Postgres, in_memory

ROOT = Path(__file__).parent.parent
IN_MEMORY = {**os.environ, "TMPDIR": str(in_memory() or tempfile.gettempdir())}


def test_the_accept_benchmark_measures_the_door_against_the_echo_on_both_stores(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    briefly = ["--seconds", "0.2", "--rounds", "1", "--connections", "16"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.accept", *briefly, "--json", figures],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        env=IN_MEMORY,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(figures.read_text())["medians"]
    assert set(measured) == {"echo", "postgres", "sqlite"}
    assert all(row["events"] > 0 and row["cpu_us"] > 0 for row in measured.values())
    assert "× echo" in done.stdout


def test_the_process_benchmark_works_events_off_one_by_one_and_in_batches(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    briefly = ["--targets", "single", "batch", "--events", "300", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.process", *briefly, "--json", figures],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        env=IN_MEMORY,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(figures.read_text())["medians"]
    assert {name: row["events"] for name, row in measured.items()} == {"single": 300, "batch": 900}
    assert all(row["rate"] > 0 and row["cpu_us"] > 0 for row in measured.values())
    assert "events/s" in done.stdout


def test_the_bench_of_the_events_page_runs(postgres: Postgres, tmp_path: Path) -> None:
    found = events.measure(postgres, tmp_path, 200)
    assert set(found) == set(events.PAGES) and min(found.values()) > 0


def test_the_email_benchmark_measures_both_ends(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    briefly = ["--events", "100", "--rounds", "1", "--batch", "20", "--connections", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.email", *briefly, "--json", figures],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        env=IN_MEMORY,
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(figures.read_text())
    assert set(measured["medians"]) == {"door alone", "end to end"}
    assert measured["ratio"] > 0
