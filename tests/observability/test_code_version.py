"""The version of the code is the commit that Git has checked out, unless a version is set."""

import subprocess
from pathlib import Path

import pytest

from oncehook.observability.code_version import SHORT, checked_out_commit


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=tester", "-c", "user.email=tester@example.com"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_commit_is_found_in_the_folder_or_a_parent(repository: Path) -> None:
    (repository / "src").mkdir()
    assert (
        checked_out_commit(repository / "src")
        == checked_out_commit(repository)
        == git(repository, "rev-parse", "HEAD")[:SHORT]
    )


def test_commit_of_a_detached_head_packed_refs_and_a_worktree_is_found(repository: Path, tmp_path: Path) -> None:
    first = git(repository, "rev-parse", "HEAD")[:SHORT]
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "other"))
    git(repository, "pack-refs", "--all")
    assert checked_out_commit(repository) == checked_out_commit(tmp_path / "other") == first
    git(repository, "checkout", "-q", "--detach")
    assert checked_out_commit(repository) == first


def test_commit_is_none_without_or_with_a_broken_repository(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / ".git").mkdir(parents=True)
    assert checked_out_commit(broken) is None
    (broken / ".git" / "HEAD").write_text("ref: refs/heads/nowhere")
    assert checked_out_commit(broken) is None
    (broken / ".git" / "HEAD").write_bytes(b"\xff\xfe")
    assert checked_out_commit(broken) is None
