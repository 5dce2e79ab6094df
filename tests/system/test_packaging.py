"""The wheel and the source archive: their contents, their metadata, and the README as PyPI shows it."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
import readme_renderer.markdown

from oncehook import __version__
from tests.support import ROOT

pytestmark = pytest.mark.xdist_group("packaging")  # the archives are built once

REPOSITORY = "https://github.com/oncehook/oncehook"
PICTURES = f"https://raw.githubusercontent.com/oncehook/oncehook/v{__version__}/"
PAGES = f"{REPOSITORY}/blob/v{__version__}/"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both archives."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> zipfile.ZipFile:
    (file,) = dist.glob("*.whl")
    return zipfile.ZipFile(file)


@pytest.fixture(scope="module")
def archive(dist: Path) -> set[str]:
    """The paths in the source archive, below its folder."""
    (file,) = dist.glob("*.tar.gz")
    with tarfile.open(file) as content:
        return {name.partition("/")[2] for name in content.getnames()}


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    return message_from_bytes(wheel.read(f"oncehook-{__version__}.dist-info/METADATA"))


@pytest.fixture(scope="module")
def readme(metadata: Message) -> str:
    text = metadata.get_payload()
    assert isinstance(text, str)
    return text


def files_below(folder: str) -> set[str]:
    """The files of the package that are not caches."""
    paths = (path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(ROOT)) for path in paths}


def test_wheel_has_every_file_of_the_package_and_no_other(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    expected = {path.removeprefix("src/") for path in files_below("src/oncehook")} | {"pytest_oncehook.py"}
    assert packed == expected
    kinds = ("oncehook/py.typed", "oncehook/providers/catalog/stripe.toml", "oncehook/store/sql/migrations.sha256")
    assert set(kinds) <= packed
    assert {Path(name).suffix for name in packed} >= {".py", ".sql", ".toml", ".html", ".css", ".js"}


def test_source_archive_has_what_its_own_tests_read(archive: set[str]) -> None:
    for folder in ("src", "tests", "docs", "examples", "bench", "deploy", "requirements", ".github"):
        assert sorted(files_below(folder) - archive) == [], folder
    assert {"Makefile", "LICENSE", "CHANGELOG.md", "SECURITY.md", ".pre-commit-config.yaml"} <= archive
    assert [path for path in archive if "__pycache__" in path or path.endswith((".db", ".pyc"))] == []


def test_metadata_has_the_version_the_license_and_the_addresses(metadata: Message) -> None:
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["License-File"] == "LICENSE"
    addresses = dict(line.split(", ") for line in metadata.get_all("Project-URL", []))
    assert addresses["Homepage"] == REPOSITORY
    assert addresses.keys() == {"Homepage", "Documentation", "Changelog", "Issues", "Security"}
    for address in addresses.values():
        page = address.partition("/blob/main/")[2]
        assert not page or (ROOT / page).exists(), address


def test_classifiers_are_the_versions_that_ci_tests(metadata: Message) -> None:
    prefix = "Programming Language :: Python :: "
    lines = metadata.get_all("Classifier", [])
    versions = [line.removeprefix(prefix) for line in lines if line.startswith(f"{prefix}3.")]
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', workflow.partition("python: [")[2].partition("]")[0]) == versions
    assert metadata["Requires-Python"] == f">={versions[0]}"


def test_extras_are_in_the_metadata(metadata: Message) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata.get_all("Provides-Extra") == sorted(project["optional-dependencies"])


def test_links_and_pictures_of_the_readme_lead_to_files_of_the_release(readme: str) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", readme)
    assert len(targets) > 50
    for target in targets:
        assert target.startswith(("https://", "#")), f"{target} is relative"
        for start in (PICTURES, PAGES):
            if target.startswith(start):
                assert (ROOT / target.removeprefix(start).partition("#")[0]).exists(), target
    assert f"{PICTURES}docs/images/overview.png" in targets


def test_readme_renders_as_on_pypi(metadata: Message, readme: str) -> None:
    assert metadata["Description-Content-Type"] == "text/markdown"
    html = readme_renderer.markdown.render(readme)
    assert html is not None and html.count("<img") == readme.count("![") > 0
    assert f'href="{PAGES}docs/effects.md"' in html
