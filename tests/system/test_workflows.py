"""The GitHub workflows: pinned actions, few permissions, and steps that exist in this repository."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import ROOT

GITHUB = ROOT / ".github"
FILES = sorted((GITHUB / "workflows").glob("*.yml"))
WORKFLOWS: dict[str, dict[str, Any]] = {file.stem: yaml.safe_load(file.read_text("utf-8")) for file in FILES}
JOBS = {f"{name}.{job}": body for name, workflow in WORKFLOWS.items() for job, body in workflow["jobs"].items()}
COMMANDS = sorted({step["run"] for job in JOBS.values() for step in job["steps"] if "run" in step})


def assert_succeeds(*command: str | Path) -> None:
    program = Path(sys.executable).with_name(str(command[0]))
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_linters_find_nothing() -> None:
    assert_succeeds(
        "yamllint", "--strict", "-c", ROOT / "deploy" / ".yamllint", GITHUB, ROOT / ".pre-commit-config.yaml"
    )
    assert_succeeds("zizmor", "--offline", "--quiet", GITHUB)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_actions_are_pinned_by_commit_with_their_version(file: Path) -> None:
    uses = re.findall(r"uses: (.+)", file.read_text("utf-8"))
    assert uses and [line for line in uses if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)] == []


def test_one_version_of_each_action_is_used() -> None:
    pins = {line for file in FILES for line in re.findall(r"uses: (.+)", file.read_text("utf-8"))}
    assert len({pin.partition("@")[0] for pin in pins}) == len(pins), sorted(pins)


@pytest.mark.parametrize("job", JOBS)
def test_job_has_a_time_limit_and_only_the_permissions_that_it_names(job: str) -> None:
    assert WORKFLOWS[job.partition(".")[0]]["permissions"] == {}
    assert JOBS[job]["timeout-minutes"] <= 30
    writes = {scope for scope, access in JOBS[job]["permissions"].items() if access == "write"}
    allowed = {"publish.publish": {"id-token", "attestations"}, "docs.deploy": {"id-token", "pages"}}
    assert writes == allowed.get(job, set())


def test_publishing_job_runs_no_code_of_the_repository() -> None:
    """The job with the right to publish only passes on the files that the job before it has tested."""
    steps = JOBS["publish.publish"]["steps"]
    assert all("uses" in step and "checkout" not in step["uses"] for step in steps)
    assert JOBS["publish.publish"]["needs"] == "build" and JOBS["publish.publish"]["environment"]["name"] == "pypi"


@pytest.mark.parametrize("command", COMMANDS)
def test_step_names_targets_scripts_and_modules_that_exist(command: str) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in re.findall(r"^make ([\w./-]+)", command):
        assert re.search(rf"^[^\t\n]*{re.escape(target)}\b[^\n]*:", makefile, re.MULTILINE), target
    for script in re.findall(r"\.ci/[\w-]+", command):
        assert (ROOT / script).stat().st_mode & 0o111, f"{script} is not executable"
    for module in re.findall(r"-m ([\w.]+)", command):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
