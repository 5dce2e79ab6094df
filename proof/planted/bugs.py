"""Reads the planted bugs. Each is a patch with a header: the mistake, the promise that it breaks, and the tests."""

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent

KNOWN = 25
"""The bugs up to this number are mistakes that other systems had. The later ones are in Oncehook's designs."""

_NAME = re.compile(r"(\d\d)-([a-z0-9-]+)\.patch")
_FIELD = re.compile(r"(Bug|Breaks|Note|Test): (.+)")
_FILE = re.compile(r"^--- a/(\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Bug:
    """A planted bug. `tests` are the tests that catch it: at least one of them fails while it is planted."""

    path: Path
    number: int
    name: str
    sentence: str
    breaks: str
    note: str
    tests: tuple[str, ...]
    files: tuple[str, ...]

    @property
    def is_known(self) -> bool:
        return self.number <= KNOWN


def read(path: Path) -> Bug:
    """Read a patch. Raises ValueError if its name or header is not complete."""
    named = _NAME.fullmatch(path.name)
    if named is None:
        raise ValueError(f"{path.name}: the name of a patch must be NN-name.patch")
    text = path.read_text("utf-8")
    header = text.partition("\n--- ")[0].rstrip().splitlines()
    fields: dict[str, list[str]] = {"Bug": [], "Breaks": [], "Note": [], "Test": []}
    for line in header:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise ValueError(f"{path.name}: expected a line of Bug, Breaks, Note or Test in the header, got {line!r}")
        fields[field[1]].append(field[2])
    if len(fields["Bug"]) != 1 or len(fields["Breaks"]) != 1 or len(fields["Note"]) > 1 or not fields["Test"]:
        raise ValueError(f"{path.name}: the header needs one line of Bug, one of Breaks, and a Test")
    return Bug(
        path=path,
        number=int(named[1]),
        name=named[2],
        sentence=fields["Bug"][0],
        breaks=fields["Breaks"][0],
        note="".join(fields["Note"]),
        tests=tuple(fields["Test"]),
        files=tuple(_FILE.findall(text)),
    )


def read_all() -> list[Bug]:
    return [read(path) for path in sorted(FOLDER.glob("*.patch"))]
