"""The directory of the spool, which all processes of a host share. A lock on each segment tells who may use it."""

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from oncehook.model.errors import ConfigurationError
from oncehook.receiver.spool.record import MAGIC, count_events

SUFFIX = ".spool"
NEW = ".new"
DAMAGED = ".damaged"


class Segment:
    """An open segment whose lock this process holds. `append` returns after its bytes are on the disk."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.size = os.fstat(descriptor).st_size
        self._descriptor = descriptor
        self._is_closed = False

    def append(self, data: bytes) -> None:
        """Write and fsync. If this raises, nothing of `data` may be acked, and the segment takes no more."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._descriptor, view) :]
        os.fsync(self._descriptor)
        self.size += len(data)

    def read(self) -> bytes:
        return self.path.read_bytes()

    def close(self) -> None:
        """Release the lock, once. Any process can claim the segment from now on."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._descriptor)


class SpoolDirectory:
    """Segments in one folder. Names begin with their time, so that their order is that of the deliveries."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._counts: dict[str, tuple[int, int]] = {}  # segment → its size, and its events

    def prepare(self) -> None:
        """Make the folder, and check that a segment can be written. Raises ConfigurationError."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.remove(self.create())
        except OSError as error:
            raise ConfigurationError(
                f"spool: {self.folder} cannot be written ({error.strerror}). Name a folder on a local disk that this "
                f"process may write"
            ) from None

    def create(self) -> Segment:
        """Make a segment. Its name appears in the folder only when it is locked and durable."""
        name = f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}"
        new = self.folder / f"{name}{NEW}"
        descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            segment = Segment(new, descriptor)
            segment.append(MAGIC)
            segment.path = new.with_suffix(SUFFIX)
            new.rename(segment.path)
            self._sync()
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                new.unlink()
            raise
        return segment

    def adopt(self, path: Path) -> Segment | None:
        """Lock a segment of a process that has ended. None if its process lives, or another process was faster."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.stat().st_ino == os.fstat(descriptor).st_ino:
                return Segment(path, descriptor)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return None

    def remove(self, segment: Segment) -> None:
        """Delete a segment while its lock is held, so that no other process claims it too."""
        segment.path.unlink()
        segment.close()
        self._sync()

    def set_aside(self, segment: Segment) -> Path:
        """Keep a segment that could not be read completely, under another name."""
        kept = segment.path.with_suffix(DAMAGED)
        segment.path.rename(kept)
        segment.close()
        self._sync()
        return kept

    def segments(self) -> list[Path]:
        """Return all segments, the oldest first."""
        return sorted(self.folder.glob(f"*{SUFFIX}"))

    def damaged(self) -> list[Path]:
        """Return the segments that were set aside."""
        return sorted(self.folder.glob(f"*{DAMAGED}"))

    def bytes(self) -> int:
        """Return the size of all segments."""
        return sum(_size(path) for path in self.segments())

    def events(self) -> int:
        """Return how many events wait, in the segments of all processes. Reads only segments that have changed."""
        counts = {}
        for path in self.segments():
            size = _size(path)
            known = self._counts.get(path.name)
            if known is None or known[0] != size:
                with suppress(OSError):  # another task claimed it at this moment
                    known = size, count_events(path.read_bytes())
            if known is not None:
                counts[path.name] = known
        self._counts = counts
        return sum(events for _, events in counts.values())

    def oldest(self) -> float | None:
        """Return the time of the oldest segment, in seconds since the epoch."""
        return oldest_of(self.segments())

    def _sync(self) -> None:
        """Make the names in the folder durable."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def oldest_of(segments: Sequence[Path]) -> float | None:
    return int(segments[0].name.partition("-")[0]) / 1e9 if segments else None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
