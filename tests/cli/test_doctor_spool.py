"""What the doctor says about the spool."""

from pathlib import Path

import pytest

from oncehook.cli.doctor_spool import spool_findings
from oncehook.config.settings import Settings
from oncehook.receiver.spool.directory import SpoolDirectory
from oncehook.receiver.spool.record import encode
from tests.support.command_line import Run
from tests.support.events import make_claim
from tests.support.serve import write_config


@pytest.fixture
def directory(tmp_path: Path) -> SpoolDirectory:
    directory = SpoolDirectory(tmp_path / "spool")
    directory.prepare()
    return directory


def find(directory: SpoolDirectory, limit: int = 2**20) -> list[tuple[str, str]]:
    return spool_findings(Settings(spool=str(directory.folder), spool_limit=limit))


def test_empty_spool_is_in_order(directory: SpoolDirectory) -> None:
    assert find(directory) == [("ok", f"spool: {directory.folder} can be written and is empty")]


def test_events_that_wait_are_a_note_at_first_and_wrong_after_a_minute(directory: SpoolDirectory) -> None:
    segment = directory.create()
    segment.append(encode([make_claim()]))
    ((level, sentence),) = find(directory)
    assert (level, "1 event(s)" in sentence) == ("note", True)
    segment.path.rename(directory.folder / f"{10**18:020d}-1-a.spool")
    ((level, _),) = find(directory)
    assert level == "wrong"
    segment.close()


def test_segment_that_was_set_aside_is_wrong(directory: SpoolDirectory) -> None:
    directory.set_aside(directory.create())
    assert [level for level, _ in find(directory)] == ["ok", "wrong"]


def test_limit_that_the_disk_cannot_hold_is_a_note(directory: SpoolDirectory) -> None:
    (_, (level, sentence)) = find(directory, limit=2**60)
    assert (level, "spool_limit" in sentence) == ("note", True)


def test_folder_that_cannot_be_written_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ((level, sentence),) = spool_findings(Settings(spool=str(tmp_path / "file")))
    assert (level, "cannot be written" in sentence) == ("wrong", True)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_doctor_reports_the_spool(run: Run, in_folder: Path, database: str) -> None:
    write_config(in_folder, database, f'spool = "{in_folder / "spool"}"')
    assert "can be written and is empty" in run("doctor").out
