"""Files as a power cut leaves them: synced writes and names are there, and of the others any part may be."""

import random
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

RECORD = struct.Struct("<cHqq")
FOLDER = 3
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
        start += RECORD.size + size
        yield Step(start, action.decode(), file, at, journal[start - size : start])


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


class Folder:
    """The files of a folder. A name is durable after a sync of the folder, and contents after a sync of their file."""

    def __init__(self) -> None:
        self.files: dict[int, Disk] = {}
        self.names: dict[int, str] = {}
        self.unsynced: list[Step] = []
        self.syncing: list[int] = []

    def do(self, step: Step) -> None:
        if step.file == FOLDER and step.action == "b":
            self.syncing.append(len(self.unsynced))
        elif step.file == FOLDER and step.action == "e":
            covered = self.syncing.pop(0)
            for done in self.unsynced[:covered]:
                _name(self.names, done)
            self.unsynced = self.unsynced[covered:]
            self.syncing = [max(0, count - covered) for count in self.syncing]
        elif step.action in "mnr":
            self.unsynced.append(step)
            if step.action == "m":
                self.files[step.file] = Disk()
        elif step.file in self.files:
            self.files[step.file].do(step)

    def after_a_cut(self, left: str, chance: random.Random) -> dict[str, bytes]:
        """The contents by name. Changes of names survive in their order, as a journaling file system keeps them."""
        names = dict(self.names)
        survive = {"nothing": 0, "everything": len(self.unsynced)}.get(left, chance.randint(0, len(self.unsynced)))
        for step in self.unsynced[:survive]:
            _name(names, step)
        return {name: self.files[file].after_a_cut(left, chance) for file, name in names.items()}


def _name(names: dict[int, str], step: Step) -> None:
    if step.action == "r":
        names.pop(step.file, None)
    else:
        names[step.file] = step.data.decode()
