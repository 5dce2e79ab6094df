"""Segments belong to the process that holds their lock."""

import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from oncehook.model.errors import ConfigurationError
from oncehook.receiver.spool.directory import SpoolDirectory
from oncehook.receiver.spool.record import MAGIC, encode
from tests.support.events import make_claim

HOLD = """
import sys
from pathlib import Path
from oncehook.receiver.spool.directory import SpoolDirectory
segment = SpoolDirectory(Path(sys.argv[1])).create()
segment.append(b"x")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> SpoolDirectory:
    directory = SpoolDirectory(tmp_path / "spool")
    directory.prepare()
    return directory


def test_new_folder_and_its_segments_are_private(directory: SpoolDirectory) -> None:
    segment = directory.create()
    assert stat.S_IMODE(directory.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(segment.path.stat().st_mode) == 0o600
    assert segment.read() == MAGIC
    segment.close()


def test_segment_is_adopted_only_after_its_process_has_released_it(directory: SpoolDirectory) -> None:
    segment = directory.create()
    assert directory.adopt(segment.path) is None
    segment.close()
    adopted = directory.adopt(segment.path)
    assert adopted is not None
    assert directory.adopt(segment.path) is None, "only one adopts it"
    directory.remove(adopted)
    assert directory.segments() == []
    assert directory.adopt(segment.path) is None


def test_segment_of_another_process_is_not_kept_open(directory: SpoolDirectory) -> None:
    """The spool looks at it once a second, for as long as the database is down."""
    segment = directory.create()
    free = lowest_free_descriptor()
    assert directory.adopt(segment.path) is None
    assert lowest_free_descriptor() == free
    directory.remove(segment)


def lowest_free_descriptor() -> int:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def test_segment_that_is_removed_before_it_can_be_locked_is_not_adopted(
    directory: SpoolDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment, lock = directory.create(), fcntl.flock
    segment.close()

    def lock_too_late(descriptor: int, operation: int) -> None:
        segment.path.unlink()  # another process has claimed its events
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", lock_too_late)
    assert directory.adopt(segment.path) is None


def test_segment_of_a_killed_process_is_adopted(directory: SpoolDirectory) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None and other.stdin is not None
    assert other.stdout.readline() == b"ready\n"
    (path,) = directory.segments()
    assert directory.adopt(path) is None
    other.kill()
    other.wait()
    adopted = directory.adopt(path)
    assert adopted is not None
    assert adopted.read() == MAGIC + b"x"
    adopted.close()
    other.stdout.close()
    other.stdin.close()


def test_events_and_bytes_of_all_segments_are_counted(directory: SpoolDirectory) -> None:
    assert (directory.events(), directory.bytes(), directory.oldest()) == (0, 0, None)
    one, other = directory.create(), directory.create()
    one.append(encode([make_claim("evt_1"), make_claim("evt_2")]))
    other.append(encode([make_claim("evt_3")]))
    assert directory.events() == 3
    one.append(encode([make_claim("evt_4")]))
    assert directory.events() == 4
    assert directory.bytes() == one.size + other.size
    assert directory.oldest() is not None
    directory.remove(one)
    assert directory.events() == 1
    other.close()


def test_file_that_was_not_finished_is_no_segment(directory: SpoolDirectory) -> None:
    (directory.folder / "1-2-3.new").write_bytes(MAGIC)
    assert directory.segments() == []


def test_segment_that_is_set_aside_is_kept_and_not_counted(directory: SpoolDirectory) -> None:
    segment = directory.create()
    kept = directory.set_aside(segment)
    assert (directory.segments(), directory.damaged(), kept.read_bytes()) == ([], [kept], MAGIC)


def test_folder_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigurationError, match=r"spool: .*file.* cannot be written"):
        SpoolDirectory(file).prepare()


def test_append_is_complete_even_if_the_system_writes_less(
    directory: SpoolDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data[:7])))
    segment = directory.create()
    segment.append(b"0123456789" * 10)
    assert segment.read() == MAGIC + b"0123456789" * 10
    segment.close()
