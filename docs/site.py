"""Builds the documentation site: `python -m docs.site`, or `make docs-site`.

The pages stay where they are, with links that work in the repository. This module copies them to `build/docs/`, maps
their links, writes the navigation, and runs Zensical in strict mode. The navigation is docs/README.md: its headings are
the sections, and each row of a table is a page.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from subprocess import PIPE, STDOUT

import yaml

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "docs"
SITE = ROOT / "site"
REPOSITORY = "https://github.com/oncehook/oncehook"
INDEX = "docs/README.md"

_WITHOUT_SIDEBAR = "---\nhide:\n  - navigation\n---\n\n"
_ROW = re.compile(r"^\| \[([^\]]+)\]\(([^)#\s]+)\) \|")
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_COLOR = re.compile(r"\x1b\[[\d;]*m")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.DOTALL | re.MULTILINE)


@dataclass
class Section:
    """A heading of the index: its pages as path in the repository → label, and the headings under it."""

    title: str
    pages: dict[str, str] = field(default_factory=dict)
    sections: list["Section"] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [*self.pages, *(path for section in self.sections for path in section.paths())]


class BrokenLink(Exception):
    """A page links to a file that does not exist."""


class BuildFailed(Exception):
    """Zensical reported a warning or an error."""


def main() -> None:
    try:
        site = build(BUILD)
    except (BrokenLink, BuildFailed) as error:
        sys.exit(f"docs.site: {error}")
    shutil.rmtree(SITE, ignore_errors=True)
    site.rename(SITE)
    print(f"The site is in {SITE.name}/: open {SITE.name}/index.html")


def build(folder: Path) -> Path:
    """Build the site in a folder, and return the path of its files. Any warning of Zensical is an error."""
    prepare(folder)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict", "-f", str(folder / "mkdocs.yml")]
    run = subprocess.run(command, stdout=PIPE, stderr=STDOUT, text=True, check=False)  # noqa: S603 - no outside input
    if run.returncode or "No issues found" not in run.stdout:
        raise BuildFailed(_COLOR.sub("", run.stdout).partition("Traceback")[0])
    return folder / "site"


def prepare(folder: Path) -> None:
    """Write the pages with mapped links, the files they show, and the configuration to a folder."""
    shutil.rmtree(folder, ignore_errors=True)
    paths = {path: site_path(path) for path in site_pages()}
    for path, target in paths.items():
        file = folder / "pages" / target
        file.parent.mkdir(parents=True, exist_ok=True)
        text = map_links((ROOT / path).read_text("utf-8"), path, paths)
        file.write_text(_WITHOUT_SIDEBAR + text if path == INDEX else text, "utf-8")
    for name in ("images", "site_assets"):
        shutil.copytree(ROOT / "docs" / name, folder / "pages" / name)
    settings = (ROOT / "docs" / "site.yml").read_text("utf-8")
    nav = [{"Home": site_path(INDEX)}, *(_entry(section, paths) for section in sections())]
    (folder / "mkdocs.yml").write_text(f"{settings}\n{yaml.safe_dump({'nav': nav}, sort_keys=False)}", "utf-8")


# -- navigation -----------------------------------------------------------------------------------------------------


def sections() -> list[Section]:
    """Return the sections of the index, with the decision records as the last part of the last one."""
    found: list[Section] = []
    for line in (ROOT / INDEX).read_text("utf-8").splitlines():
        if line.startswith("## "):
            found.append(Section(line[3:]))
        elif line.startswith("### "):
            found[-1].sections.append(Section(line[4:]))
        elif match := _ROW.match(line):
            section = found[-1].sections[-1] if found[-1].sections else found[-1]
            section.pages[resolve(match[2], INDEX)] = match[1][0].upper() + match[1][1:]
    found[-1].sections.append(_decisions())
    return found


def _decisions() -> Section:
    section = Section("Decision records")
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        section.pages[f"docs/decisions/{page.name}"] = title
    return section


def _entry(section: Section, paths: dict[str, str]) -> dict[str, object]:
    pages: list[object] = [{label: paths[path]} for path, label in section.pages.items()]
    return {section.title: [*pages, *(_entry(inner, paths) for inner in section.sections)]}


# -- pages and links ------------------------------------------------------------------------------------------------


def site_pages() -> list[str]:
    """Return the path of every page of the site, from the root of the repository."""
    return [INDEX, *dict.fromkeys(path for section in sections() for path in section.paths())]


def site_path(path: str) -> str:
    """Return where a file of the repository is in the site. Pages outside `docs/` are under `repository/`."""
    if path == INDEX:
        return "index.md"
    return path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"


def resolve(link: str, page: str) -> str:
    """Return the path that a relative link of a page names, from the root of the repository."""
    path = os.path.normpath(PurePosixPath(page).parent / link)
    if path.startswith("..") or not (ROOT / path).exists():
        raise BrokenLink(f"{page}: {link} does not exist")
    return path


def map_links(text: str, page: str, paths: dict[str, str]) -> str:
    """Return a page whose links lead to other pages of the site, or to the repository for all other files."""

    def replace(match: re.Match[str]) -> str:
        link, _, anchor = match[2].partition("#")
        if not link or re.match(r"[a-z]+:", link):
            return match[0]
        return f"{match[1]}{_target(resolve(link, page))}{'#' if anchor else ''}{anchor}{match[3]}"

    def _target(path: str) -> str:
        if path in paths or path.startswith("docs/images/"):
            here = PurePosixPath(site_path(page)).parent
            return os.path.relpath(paths.get(path, path.removeprefix("docs/")), here)
        return f"{REPOSITORY}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"

    parts = _CODE.split(text)
    return "".join(part if number % 2 else _LINK.sub(replace, part) for number, part in enumerate(parts))


if __name__ == "__main__":
    main()
