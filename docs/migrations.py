"""Digests of the migrations. `python -m docs.generate` records them; tests/store/test_schema_scripts.py compares them.

Migrations are append-only. A database runs each of them once, so editing a released one would leave two different
schemas under the same number.
"""

import hashlib
from pathlib import Path

SQL = Path(__file__).parent.parent / "src" / "oncehook" / "store" / "sql"
RECORDED = SQL / "migrations.sha256"

RELEASED: dict[str, int] = {}
"""Release version → number of its last migration. Add a line with every release."""


def digests() -> dict[str, str]:
    """Return the SHA-256 of every migration, by its path below `sql/`."""
    return {
        file.relative_to(SQL).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(SQL.glob("*/migrations/*.sql"))
    }


def recorded() -> dict[str, str]:
    """Return the recorded digests. The file has the format of `sha256sum`."""
    lines = RECORDED.read_text("utf-8").splitlines() if RECORDED.exists() else []
    return {path: digest for digest, path in (line.split("  ") for line in lines)}


def problems(before: dict[str, str], now: dict[str, str], released: int) -> list[str]:
    """Return an error message for every migration that differs from its record."""
    differing = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
    return [_problem(path, path in before, released) for path in differing]


def _problem(path: str, is_recorded: bool, released: int) -> str:
    if not is_recorded:
        return f"{path} is not recorded: run `python -m docs.generate`"
    if _number(path) <= released:
        return (
            f"{path} has been released and must not change. Migrations are append-only: restore the file, and write "
            "the change as a new NNN_name.sql in both dialects"
        )
    return f"{path} differs from its record. It has not been released, so `python -m docs.generate` records the change"


def record() -> bool:
    """Write the digests if they changed, and return whether they did. Exit if a released migration changed."""
    now, released = digests(), max(RELEASED.values(), default=0)
    sealed = {path: digest for path, digest in recorded().items() if _number(path) <= released}
    if errors := problems(sealed, {path: now.get(path, "") for path in sealed}, released):
        raise SystemExit("\n".join(errors))
    text = "".join(f"{digest}  {path}\n" for path, digest in now.items())
    if RECORDED.exists() and RECORDED.read_text("utf-8") == text:
        return False
    RECORDED.write_text(text, "utf-8")
    return True


def _number(path: str) -> int:
    return int(Path(path).name.partition("_")[0])
