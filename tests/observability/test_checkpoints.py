"""Checkpoints: which checkpoints a listener gets, and that production has no listener."""

import subprocess
import sys

import pytest

from oncehook.observability import checkpoints
from oncehook.observability.checkpoints import Checkpoint


def test_listener_is_called_with_each_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[Checkpoint] = []
    monkeypatch.setattr(checkpoints, "listener", reached.append)
    checkpoints.reach(Checkpoint.WORKER_IDLE)
    checkpoints.reach(Checkpoint.PRUNED)
    assert reached == [Checkpoint.WORKER_IDLE, Checkpoint.PRUNED]


def test_checkpoint_without_a_listener_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "listener", None)
    checkpoints.reach(Checkpoint.WORKER_IDLE)


def test_importing_oncehook_sets_no_listener() -> None:
    code = "import oncehook.cli; from oncehook.observability import checkpoints; print(checkpoints.listener)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "None\n", "only tests listen"
