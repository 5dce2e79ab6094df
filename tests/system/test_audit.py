"""`make audit`: the SBOM names every locked package, and the rules for insecure code apply to the whole source."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.locks import normalize, pins


def recipe(target: str) -> str:
    """The commands of a target, as make would run them."""
    done = subprocess.run(["make", "-n", "-B", "-C", ROOT, "-o", ".venv/ready-for-tests", target],
                          capture_output=True, text=True, check=True)  # fmt: skip
    return done.stdout


@pytest.mark.rest
@pytest.mark.parametrize("lock", ["run", "image"])
def test_sbom_names_every_locked_package_with_its_hashes(tmp_path: Path, lock: str) -> None:
    found = re.search(r"\S+/cyclonedx-py .*?json(?=\s)", recipe("sbom").replace("\\\n", ""))
    assert found is not None
    command = found[0].replace("$lock", lock).replace("build/sbom", str(tmp_path))
    subprocess.run(command.split(), cwd=ROOT, check=True, capture_output=True)
    bom = json.loads((tmp_path / f"oncehook-{lock}.cdx.json").read_text("utf-8"))
    assert bom["bomFormat"] == "CycloneDX" and bom["metadata"]["component"]["name"] == "oncehook"
    listed = {normalize(part["name"]): part["version"] for part in bom["components"]}
    assert listed == pins(lock)
    for part in bom["components"]:
        assert part["purl"].startswith("pkg:pypi/") and part["externalReferences"][0]["hashes"], part["name"]


def test_audit_checks_code_and_packages() -> None:
    commands = recipe("audit")
    assert "ruff check --select S ." in commands and "cyclonedx-py" in commands
    assert re.search(r"pip-audit --strict .*-r requirements/image\.txt", commands)


def test_no_file_of_the_source_is_exempt_from_the_rules_for_insecure_code() -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["ruff"]["lint"]
    assert "S" in lint["select"] and [code for code in lint["ignore"] if code.startswith("S1")] == ["S101"]
    assert [files for files in lint["per-file-ignores"] if files.startswith("src")] == []
