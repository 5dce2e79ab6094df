"""The load of `python -m proof.load`: a short run, and figures that must fail."""

import json
from pathlib import Path

import pytest

from proof.load.__main__ import result_of
from proof.load.clients import Hostile, Load
from proof.load.run import Outcome, Sample
from tests.system.test_proof_deliveries import needs_linux, run_program


@needs_linux
@pytest.mark.rest
@pytest.mark.timeout(300)
def test_short_load_is_acked_applied_once_and_measured(tmp_path: Path) -> None:
    done = run_program("proof.load", tmp_path, "--seconds", "5", "--rate", "40", "--goal", "0")
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    result = json.loads((tmp_path / "load.json").read_text())
    assert result["ok"] and result["events"] == 200
    assert [set(figures) for figures in result["phases"].values()] == [{"p50", "p95", "p99", "max"}] * 4
    assert result["hostile"].get("oversized body, 413", 0) + result["hostile"].get(
        "oversized body, connection reset", 0
    )
    assert result["descriptors"]["most"] > result["descriptors"]["first"], "no hostile client was there"


@pytest.mark.parametrize(
    ("latency", "megabytes", "descriptors", "expected"),
    [
        (0.01, 60.0, 20, []),
        (0.2, 60.0, 20, ["the acks of the phase 'calm' have a p99 of 200.0 ms, and the goal is 100 ms"]),
        (0.01, 75.0, 20, ["the memory of the server grew from 60.0 MB to 75.0 MB"]),
        (0.01, 60.0, 40, ["the server had 20.0 descriptors, and 40.0 at the end"]),
    ],
)
def test_late_acks_and_growth_are_found(
    latency: float, megabytes: float, descriptors: int, expected: list[str]
) -> None:
    load = Load(0, 1.0, 100.0, latencies=[(second, 0.01) for second in range(100)], acked=set(range(100)))
    load.latencies += [(30.0, latency)] * 10
    samples = [Sample(second, 60.0, 20) for second in range(80)]
    samples += [Sample(second, megabytes, descriptors) for second in range(81, 100)]
    outcome = Outcome(1.0, 100.0, load, Hostile(0), samples, [])
    assert result_of(outcome, 100.0, 100.0)["problems"] == expected
