"""Writes results as JSON into the folder that ONCEHOOK_PROOF_DIR names, for a page that shows them."""

import json
import os
import platform
import sqlite3
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any


def write_result(name: str, result: dict[str, Any]) -> Path | None:
    """Write `NAME.json`. Returns its path, or None if ONCEHOOK_PROOF_DIR is not set."""
    folder = os.environ.get("ONCEHOOK_PROOF_DIR")
    if not folder:
        return None
    versions = {"oncehook": version("oncehook"), "python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    path = Path(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {"name": name, "versions": versions, "command": [Path(sys.argv[0]).name, *sys.argv[1:]], **result}, indent=2
        )
        + "\n"
    )
    return path
