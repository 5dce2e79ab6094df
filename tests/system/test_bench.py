"""A sample of the benchmark: that it runs, measures every target and says what it measured. Not how fast it is."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import events
from tests.support import ROOT
from tests.support.servers import Postgres, in_memory

IN_MEMORY = {**os.environ, "TMPDIR": str(in_memory() or tempfile.gettempdir())}


def ran(folder: Path, module: str, *options: str) -> tuple[str, dict[str, Any]]:
    """What a benchmark prints, and the figures that it writes."""
    file = folder / "figures.json"
    command = [sys.executable, "-m", module, *options, "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, env=IN_MEMORY)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


def test_the_accept_benchmark_measures_the_door_against_the_echo_on_both_stores(tmp_path: Path) -> None:
    briefly = ["--seconds", "0.2", "--rounds", "1", "--connections", "16"]
    printed, figures = ran(tmp_path, "bench.accept", *briefly)
    measured = figures["medians"]
    assert set(measured) == {"echo", "postgres", "sqlite"}
    assert all(row["events"] > 0 and row["cpu_us"] > 0 for row in measured.values())
    assert "× echo" in printed


def test_the_process_benchmark_works_events_off_one_by_one_and_in_batches(tmp_path: Path) -> None:
    briefly = ["--targets", "single", "batch", "--events", "300", "--rounds", "1"]
    printed, figures = ran(tmp_path, "bench.process", *briefly)
    measured = figures["medians"]
    assert {name: row["events"] for name, row in measured.items()} == {"single": 300, "batch": 900}
    assert all(row["rate"] > 0 and row["cpu_us"] > 0 for row in measured.values())
    assert "events/s" in printed


def test_the_bench_of_the_events_page_runs(postgres: Postgres, tmp_path: Path) -> None:
    found = events.measure(postgres, tmp_path, 200)
    assert set(found) == set(events.PAGES) and min(found.values()) > 0


def test_the_email_benchmark_measures_both_ends(tmp_path: Path) -> None:
    briefly = ["--events", "100", "--rounds", "1", "--batch", "20", "--connections", "4"]
    _, figures = ran(tmp_path, "bench.email", *briefly)
    assert set(figures["medians"]) == {"receiver alone", "end to end"}
    assert figures["ratio"] > 0
