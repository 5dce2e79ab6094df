"""The entry point: help, versions, exit codes, and errors that become one message."""

import json
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from oncehook import Inbox, cli
from oncehook.cli import COMMANDS
from oncehook.model.errors import ConfigurationError, OncehookError
from tests.support.command_line import Run, run_process
from tests.support.events import make_claim
from tests.support.serve import ONCEHOOK
from tests.support.work import claim_and_settle


def test_help_lists_every_command_and_each_command_has_help(run: Run) -> None:
    shown = run("--help")
    assert shown.code == 0
    for name, summary in COMMANDS.items():
        assert name in shown.out and summary in shown.out
        help_text = run(name, "--help")
        assert help_text.code == 0 and f"oncehook {name}" in help_text.out
    assert run("-h").out == shown.out
    assert run("--version").out.startswith("oncehook 0.")


def test_help_takes_less_than_a_second_of_cpu() -> None:
    """CPU time, because the elapsed time depends on the load of the machine."""
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run_process("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(seconds) < 1.0


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["events", "--nonsense"], ["events", "--status", "done"], ["events", "--since", "yesterday"]],
    ids=" ".join,
)
def test_bad_usage_is_reported_with_exit_code_2(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert ran.code == 2 and ran.out == ""
    assert arguments[-1].lstrip("-") in ran.error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigurationError("no such setting"), 2, "oncehook: no such setting\n"),
        (OncehookError("it failed"), 1, "oncehook: it failed\n"),
        (OSError("disk full"), 1, "oncehook: disk full\n"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), 2, "oncehook: an argument or a file is not valid UTF-8\n"),
        (click.exceptions.Abort(), 130, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_an_exception_becomes_a_message_and_an_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    # Tests of the commands have real causes of some of these; here each class is mapped, whatever raises it.
    monkeypatch.setattr(cli, "oncehook", fail)
    ran = run("events")
    assert (ran.code, ran.error) == (code, message)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_fits_80_columns_and_has_an_example(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(name, "--help").out.splitlines()
    assert any(line.startswith(f"  oncehook {name}") for line in lines), "the help must show an example"
    assert [line for line in lines if len(line) > 80] == [], "these lines are too long for a terminal of 80 columns"


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_reader_that_closes_the_pipe_early_causes_no_error(config: Path, make_inbox: Callable[..., Inbox]) -> None:
    claim_and_settle(make_inbox, *(make_claim(f"evt_{n}") for n in range(100)))
    command = f"{ONCEHOOK} events --json --config {config} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["source"] == "stripe"
