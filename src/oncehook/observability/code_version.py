"""Finds the version of the user's code: the Git commit that is checked out where the process was started."""

import re
from pathlib import Path

SHORT = 12
_SHA = re.compile(r"[0-9a-f]{40,64}")


def checked_out_commit(folder: Path) -> str | None:
    """Return the abbreviated commit that is checked out in `folder` or a parent, or None if it is unknown."""
    for parent in (folder, *folder.parents):
        git = parent / ".git"
        try:
            if git.is_file():  # in a worktree or submodule, this file names the real Git folder
                git = (parent / git.read_text("utf-8").removeprefix("gitdir:").strip()).resolve()
            if git.is_dir():
                return _head_commit(git)
        except (OSError, UnicodeError):
            return None
    return None


def _head_commit(git: Path) -> str | None:
    head = (git / "HEAD").read_text("utf-8").strip()
    if not head.startswith("ref: "):
        return head[:SHORT] if _SHA.fullmatch(head) else None
    name = head.removeprefix("ref: ")
    common = git / "commondir"
    shared = (git / common.read_text("utf-8").strip()).resolve() if common.is_file() else git
    for base in (git, shared):
        if (base / name).is_file():
            commit = (base / name).read_text("utf-8").strip()
            return commit[:SHORT] if _SHA.fullmatch(commit) else None
    packed = shared / "packed-refs"
    lines = packed.read_text("utf-8").splitlines() if packed.is_file() else []
    return next((line[:SHORT] for line in lines if line.endswith(f" {name}") and _SHA.match(line)), None)
