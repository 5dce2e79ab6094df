"""The helpers that commands share: opening a database, times, JSON, escaping and new files."""

import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from oncehook.cli.options import ParsedOption, TimeOption, print_json, printable, write_new
from oncehook.model.values import positive_duration
from tests.support.command_line import Run
from tests.support.serve import write_config


@pytest.mark.parametrize(
    "command", [["events"], ["show", "1"], ["replay", "--failed"], ["dead"], ["stats"]], ids=lambda command: command[0]
)
def test_a_missing_database_is_reported_and_not_created(run: Run, in_folder: Path, command: list[str]) -> None:
    write_config(in_folder, f"sqlite:///{in_folder / 'nowhere.db'}")
    ran = run(*command)
    assert ran.code == 2 and "there is no database at" in ran.error
    assert not (in_folder / "nowhere.db").exists()


@pytest.mark.without_schema
def test_an_outdated_schema_is_reported_with_the_command_to_run(run: Run, config: Path, database: str) -> None:
    if database.startswith("sqlite"):
        Path(database.removeprefix("sqlite:///")).touch()
    ran = run("events")
    assert ran.code == 2 and "run `oncehook migrate`" in ran.error


@pytest.mark.parametrize(
    "arguments", [("stats", "--watch", "--every", "0s"), ("replay", "--failed", "--wait", "--timeout", "0")]
)
def test_a_duration_of_zero_is_a_usage_error(arguments: tuple[str, ...], run: Run, in_folder: Path) -> None:
    write_config(in_folder, f"sqlite:///{in_folder}/inbox.db")
    ran = run(*arguments)
    assert ran.code == 2 and "expected more than 0" in ran.error


def test_a_time_option_accepts_a_date() -> None:
    assert TimeOption().convert("2026-11-15T03:00:00Z", None, None) == datetime(2026, 11, 15, 3, tzinfo=UTC)


def test_a_time_option_rejects_other_texts() -> None:
    with pytest.raises(click.BadParameter):
        TimeOption().convert("yesterday", None, None)


def test_a_parsed_option_names_the_value_that_it_rejects() -> None:
    option = ParsedOption("duration", positive_duration)
    assert option.convert("2m", None, None) == 120
    with pytest.raises(click.BadParameter, match="'soon'"):
        option.convert("soon", None, None)


@pytest.mark.parametrize(
    ("text", "expected"), [(None, ""), ("plain é", "plain é"), ("\x1b[2J", r"\x1b[2J"), ("a\nb", r"a\nb"), (7, "7")]
)
def test_unprintable_characters_are_escaped(text: Any, expected: str) -> None:
    assert printable(text) == expected


def test_json_is_one_line_with_unescaped_unicode(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"text": "é\n", "path": Path("x")})
    assert capsys.readouterr().out == '{"text": "é\\n", "path": "x"}\n'


def test_a_new_file_is_private_and_an_existing_one_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    assert write_new(path, "first")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not write_new(path, "second") and path.read_text() == "first"
