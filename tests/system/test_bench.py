"""The benchmarks run and report every target. Their figures are not tested."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from bench import events
from tests.support import ROOT
from tests.support.servers import Postgres, in_memory

IN_MEMORY = {**os.environ, "TMPDIR": str(in_memory() or tempfile.gettempdir())}


def run_benchmark(folder: Path, module: str, *options: str) -> tuple[str, dict[str, Any]]:
    """The output of a benchmark, and the figures that it writes."""
    file = folder / "figures.json"
    command = [sys.executable, "-m", module, *options, "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, env=IN_MEMORY)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text())


@pytest.mark.rest
def test_the_accept_benchmark_measures_the_echo_and_both_databases(tmp_path: Path) -> None:
    options = ["--seconds", "0.2", "--rounds", "1", "--connections", "16"]
    printed, figures = run_benchmark(tmp_path, "bench.accept", *options)
    measured = figures["medians"]
    assert set(measured) == {"echo", "postgres", "sqlite"}
    assert all(row["events"] > 0 and row["cpu_us"] > 0 for row in measured.values())
    assert "× echo" in printed


@pytest.mark.rest
def test_the_wsgi_benchmark_compares_both_adapters(tmp_path: Path) -> None:
    printed, figures = run_benchmark(tmp_path, "bench.wsgi", "--seconds", "0.2", "--rounds", "1", "--connections", "8")
    assert set(figures) == {"asgi", "wsgi", "ratio"} and min(figures.values()) > 0
    assert "ratio" in printed


@pytest.mark.rest
def test_the_process_benchmark_handles_single_events_and_batches(tmp_path: Path) -> None:
    options = ["--targets", "single", "batch", "--events", "300", "--rounds", "1"]
    printed, figures = run_benchmark(tmp_path, "bench.process", *options)
    measured = figures["medians"]
    assert {name: row["events"] for name, row in measured.items()} == {"single": 300, "batch": 900}
    assert all(row["rate"] > 0 and row["cpu_us"] > 0 for row in measured.values())
    assert "events/s" in printed


@pytest.mark.rest
def test_the_events_benchmark_measures_every_page(postgres: Postgres, tmp_path: Path) -> None:
    durations = events.measure(postgres, tmp_path, 200)
    assert set(durations) == set(events.PAGES) and min(durations.values()) > 0


@pytest.mark.rest
def test_the_email_benchmark_measures_the_receiver_and_the_projection(tmp_path: Path) -> None:
    options = ["--events", "100", "--rounds", "1", "--batch", "20", "--connections", "4"]
    _, figures = run_benchmark(tmp_path, "bench.email", *options)
    assert set(figures["medians"]) == {"receiver alone", "end to end"}
    assert figures["ratio"] > 0


@pytest.mark.rest
def test_the_capacity_benchmark_measures_every_figure_of_the_model(tmp_path: Path) -> None:
    options = ["--seconds", "0.2", "--connections", "8", "--events", "200", "--receipts", "200"]
    printed, figures = run_benchmark(tmp_path, "bench.capacity", *options)
    coarse = {"accept_server_us", "process_server_us", "batch_server_us"}  # 0 in a run shorter than a tick of the clock
    assert [name for name, value in figures.items() if not value and name not in coarse] == [], "not measured"
    assert "what a rate of events needs" in printed


@pytest.mark.rest
def test_the_scale_benchmark_compares_numbers_of_processes(tmp_path: Path) -> None:
    options = ["--processes", "1", "2", "--events", "200", "--seconds", "0.2", "--rounds", "1", "--connections", "8"]
    printed, figures = run_benchmark(tmp_path, "bench.scale", "--only", "accept", "process", *options)
    assert set(figures["measurements"]) == {"accept", "process"}
    for variants in figures["measurements"].values():
        assert list(variants) == ["1 process", "2 processes"]
        assert variants["1 process"]["ratio"] == 1.0 and all(row["value"] > 0 for row in variants.values())
    assert "2 processes" in printed
