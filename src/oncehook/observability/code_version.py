"""Which version of the user's code runs: what is checked out where the process was started."""

import re
from pathlib import Path

SHORT = 12
_SHA = re.compile(r"[0-9a-f]{40,64}")


def checked_out(folder: Path) -> str | None:
    """The commit that is checked out in `folder` or above it, shortened; None where it cannot be known."""
    for place in (folder, *folder.parents):
        git = place / ".git"
        try:
            if git.is_file():  # a worktree, or a submodule: it says where its own folder is
                git = (place / git.read_text("utf-8").removeprefix("gitdir:").strip()).resolve()
            if git.is_dir():
                return _commit(git)
        except (OSError, UnicodeError):
            return None
    return None


def _commit(git: Path) -> str | None:
    head = (git / "HEAD").read_text("utf-8").strip()
    if not head.startswith("ref: "):
        return head[:SHORT] if _SHA.fullmatch(head) else None
    name = head.removeprefix("ref: ")
    common = git / "commondir"
    shared = (git / common.read_text("utf-8").strip()).resolve() if common.is_file() else git
    for base in (git, shared):
        if (base / name).is_file():
            found = (base / name).read_text("utf-8").strip()
            return found[:SHORT] if _SHA.fullmatch(found) else None
    packed = shared / "packed-refs"
    lines = packed.read_text("utf-8").splitlines() if packed.is_file() else []
    return next((line[:SHORT] for line in lines if line.endswith(f" {name}") and _SHA.match(line)), None)
