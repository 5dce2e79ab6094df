"""An SQLite file as a power cut leaves it: synced writes are there, and of the others any part may be."""

import random
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

RECORD = struct.Struct("<cBqq")
SECTOR = 512
LEFT = ("nothing", "some writes", "torn writes", "everything")
"""Which writes without a sync may survive."""


def compile_library(source: str, folder: Path) -> Path:
    """Compile a library of this folder, to be loaded before all others (LD_PRELOAD)."""
    library = folder / f"{source}.so"
    code = Path(__file__).with_name(source)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, code, "-ldl", "-lpthread"], check=True)
    return library


@dataclass
class Step:
    """A record of the journal. `end` is the length of the journal including it."""

    end: int
    action: str
    file: int
    at: int
    data: bytes


def read_journal(path: Path) -> Iterator[Step]:
    journal, start = path.read_bytes(), 0
    while start + RECORD.size <= len(journal):
        action, file, at, size = RECORD.unpack_from(journal, start)
        start += RECORD.size + (size if action == b"w" else 0)
        yield Step(start, action.decode(), file, at, journal[start - size : start] if action == b"w" else b"")


@dataclass
class Disk:
    """One file: the synced content, and the writes since."""

    synced: bytearray = field(default_factory=bytearray)
    unsynced: list[Step] = field(default_factory=list)
    syncing: list[int] = field(default_factory=list)

    def do(self, step: Step) -> None:
        if step.action == "b":
            self.syncing.append(len(self.unsynced))
        elif step.action == "e":
            covered = self.syncing.pop(0)
            for done in self.unsynced[:covered]:
                apply(self.synced, done)
            self.unsynced = self.unsynced[covered:]
            self.syncing = [max(0, count - covered) for count in self.syncing]
        else:
            self.unsynced.append(step)

    def after_a_cut(self, left: str, chance: random.Random) -> bytes:
        content = bytearray(self.synced)
        for step in self.unsynced if left != "nothing" else ():
            if left == "torn writes" and step.action == "w":
                for part in range(0, len(step.data), SECTOR):
                    if chance.random() < 0.5:
                        apply(content, Step(0, "w", 0, step.at + part, step.data[part : part + SECTOR]))
            elif left != "some writes" or chance.random() < 0.5:
                apply(content, step)
        return bytes(content)


def apply(file: bytearray, step: Step) -> None:
    if step.action == "r":
        file.clear()
    elif step.action == "t":
        del file[step.at :]
        file.extend(bytes(step.at - len(file)))
    else:
        file.extend(bytes(max(0, step.at + len(step.data) - len(file))))
        file[step.at : step.at + len(step.data)] = step.data
