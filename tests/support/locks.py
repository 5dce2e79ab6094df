"""The lock files in `requirements/`: each pins what its sources name, with the hashes of every file.

Only the standard library is used: `make test-lowest` reads the pins before anything is installed.
"""

import re

from tests.support import ROOT

FOLDER = ROOT / "requirements"


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lock: str) -> dict[str, str]:
    """The normalized names of the packages in `requirements/<lock>.txt` → their versions."""
    text = (FOLDER / f"{lock}.txt").read_text("utf-8")
    return {normalize(name): version for name, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE)}


def sources(lock: str) -> set[str]:
    """The normalized names of the packages in `requirements/<lock>.in`."""
    text = (FOLDER / f"{lock}.in").read_text("utf-8")
    return {normalize(name) for name in re.findall(r"^[\w.-]+", text, re.MULTILINE)}
