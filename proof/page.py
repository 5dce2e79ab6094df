"""Writes docs/proof.md and the badge of the README from the results of the last run.

python -m proof.page                       both, from proof/last-run.json
python -m proof.page --from build/torture  first read the results of a run
"""

import argparse
import json
import os
import platform
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from docs.markdown import table
from oncehook.operations.fsck_checks import INVARIANTS
from proof.badge import badge
from proof.parts import ROOT, Part, all_parts
from proof.promises import PROMISES

DATA = ROOT / "proof" / "last-run.json"
PAGE = ROOT / "docs" / "proof.md"
BADGE = ROOT / "docs" / "images" / "proof.svg"
MUTATION = ROOT / "proof" / "mutation" / "score.json"
SHOWN = {name: invariant for name, invariant in INVARIANTS.items() if name != "schema"}
KEPT = ("title", "statement", "ok", "seconds", "cpu_seconds", "facts", "command")
"""The keys of a result that the page needs. Other keys stay in the folder of the run."""

HEADER = """\
<!-- Written by `make torture` from proof/last-run.json. Do not edit: your changes would be lost. -->

# Proof

`make torture` generates this page from its last run. Parts that were run separately are included. {verdict}

This does not prove that there is no bug. An ack covers a crash of the operating system and a power cut only with
`synchronous=FULL` on SQLite, and with `fsync` and `synchronous_commit` on PostgreSQL; Oncehook does not start
otherwise. It covers a failover of PostgreSQL only with a synchronous standby, and it never covers the loss of the disk.
Simulated power cuts drop, keep or tear unsynced writes of a file. They cannot test a disk that reports writes it has
not made. [Guarantees](guarantees.md) names the tests behind each guarantee.
"""
HELD = "No acked\nevent was lost, and no event's writes were applied twice, under these faults and within these bounds."
SO_FAR = "The parts\nthat ran lost no acked event and applied no writes twice; {missing} of {all} parts were not run."


MUTATED = """\
## Mutation score

`make mutation` changes one expression at a time in the code below. The score is the share of these mutants that the
tests find, without those that change no behaviour. It takes longer than `make torture`, so each row has its own date.
"""


# -- results -----------------------------------------------------------------------------------------------------------


def facts(result: dict[str, Any]) -> list[tuple[str, Any]]:
    """The figures of a part: its facts, or else every number in its result."""
    if "facts" in result:
        return [(label, value) for label, value in result["facts"]]
    skipped = {"seconds", "cpu_seconds", "code", "ok"}
    return [(key.replace("_", " "), value) for key, value in result.items()
            if key not in skipped and isinstance(value, int | float)]  # fmt: skip


def collect(folder: Path, seconds: float | None = None) -> dict[str, Any]:
    """Read the results of a run. A part without a result did not run."""
    parts = {}
    for part in all_parts():
        file = folder / f"{part.name}.json"
        if file.exists():
            result = json.loads(file.read_text())
            kept = {key: result[key] for key in KEPT if key in result}
            parts[part.name] = {**kept, "facts": [list(fact) for fact in facts(result)], "command": part.repeat}
    data = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": _git("rev-parse", "--short=12", "HEAD")
        + ("" if not _git("status", "--porcelain", "--untracked-files=no") else " (changed)"),
        "seconds": None if seconds is None else round(seconds),
        "cores": os.cpu_count(),
        "versions": versions(),
        "parts": parts,
    }
    assert_says_nothing_about_the_machine(json.dumps(data))
    return data


def versions() -> dict[str, str]:
    """What ran, by name."""
    from tests.support import programs

    server = programs.PROGRAMS["postgres"].locate()
    postgres = "" if server is None else _output(str(server / "postgres"), "--version")
    found = re.search(r"\d+(\.\d+)*", postgres)
    return {
        "Oncehook": version("oncehook"),
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "PostgreSQL": found[0] if found else "none",
        "system": f"{platform.system()} {platform.machine()}",
    }


def assert_says_nothing_about_the_machine(text: str) -> None:
    """Raise if a result contains a path or the name of the machine on which it ran."""
    private = {str(ROOT), str(Path.home()), socket.gethostname()} - {"/", "localhost", ""}
    found = [word for word in private if word in text]
    if found:
        raise ValueError(f"a result contains {found[0]!r}, which is about this machine: the part must leave it out")


def _output(*command: str) -> str:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603  # ours
    return done.stdout.strip()


def _git(*arguments: str) -> str:
    return _output("git", *arguments)


# -- the page ----------------------------------------------------------------------------------------------------------


def number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def fact(label: str, value: Any) -> str:
    return f"{number(value)} {label}"


def minutes(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{int(seconds) // 60} min {int(seconds) % 60} s" if seconds >= 60 else f"{seconds:.0f} s"


def _state(result: dict[str, Any]) -> str:
    return "not run" if result.get("ok") is None else "passed" if result["ok"] else "**failed**"


def _verdict(data: dict[str, Any], parts: list[Part]) -> str:
    states = [_state(data["parts"].get(part.name, {})) for part in parts]
    failed, missing = sum("failed" in state for state in states), states.count("not run")
    if not failed:
        return SO_FAR.format(missing=missing, all=len(states)) if missing else HELD
    unknown = f" {missing} of {len(states)} parts were not run." if missing else ""
    return f"**{failed} of {len(states)} parts failed.**{unknown}"


def _overview(data: dict[str, Any], parts: list[Part]) -> str:
    rows = []
    for part in parts:
        result = data["parts"].get(part.name, {})
        link, statement = f"[{part.title}](#{anchor(part.title)})", result.get("statement", part.statement)
        rows.append((link, _state(result), statement, minutes(result.get("seconds"))))
    return table(("part", "result", "what it shows", "duration"), rows)


def anchor(title: str) -> str:
    return title.lower().replace(",", "").replace(" ", "-")


def _run(data: dict[str, Any]) -> str:
    rows = [
        ("date", data["date"]),
        ("commit", f"`{data['commit']}`"),
        *((name, text) for name, text in data["versions"].items()),
        ("cores", str(data["cores"])),
    ]
    if data["seconds"] is not None:
        rows.append(("duration, with parts in parallel", minutes(data["seconds"])))
    return table(("the last run", ""), rows)


def _sections(data: dict[str, Any], parts: list[Part]) -> Iterator[str]:
    for part in parts:
        result = data["parts"].get(part.name)
        yield f"### {part.title}\n"
        if result is None or result.get("ok") is None:
            yield f"Not run.\n\n```sh\n{part.repeat}\n```\n"
            continue
        yield f"{result.get('statement', part.statement)}\n"
        times = [("duration", minutes(result.get("seconds"))), ("CPU time", minutes(result.get("cpu_seconds")))]
        rows = [(label, number(value)) for label, value in facts(result)]
        yield table(("result", _state(result)), [*rows, *(row for row in times if row[1])]) + "\n"
        yield f"```sh\n{part.repeat}\n```\n"


def _invariants(data: dict[str, Any], parts: list[Part]) -> str:
    rows = []
    for name, invariant in SHOWN.items():
        shown = [part for part in parts if name in part.invariants and data["parts"].get(part.name, {}).get("ok")]
        links = ", ".join(f"[{part.title}](#{anchor(part.title)})" for part in shown)
        rows.append((name, invariant.promise, links or "the tests in [guarantees](guarantees.md)"))
    return table(("invariant", "statement", "shown by"), rows)


def _promises(data: dict[str, Any]) -> str:
    rows = []
    for promise in PROMISES:
        found = []
        for name, labels in promise.evidence.items():
            result = data["parts"].get(name)
            counted = dict(facts(result)) if result and result.get("ok") else {}
            chosen = [label for label in (labels or counted) if label in counted]
            found += [fact(label, counted[label]) for label in chosen if isinstance(counted[label], int)]
        rows.append((promise.text, "; ".join(found) or "not run"))
    return table(("promise of the README", "shown by"), rows)


def _mutation() -> str:
    if not MUTATION.exists():
        return ""
    groups = json.loads(MUTATION.read_text("utf-8"))["groups"]
    rows = [
        (
            name,
            *(number(group[key]) for key in ("mutants", "killed", "equivalent")),
            f"{group['score']:.1%}",
            group["date"],
        )
        for name, group in groups.items()
    ]
    return f"{MUTATED}\n{table(('code', 'mutants', 'killed', 'equivalent', 'score', 'date'), rows)}\n"


def render(data: dict[str, Any]) -> str:
    """The page for these results."""
    parts = all_parts()
    blocks = [
        HEADER.format(verdict=_verdict(data, parts)),
        _run(data) + "\n",
        "```sh\nmake torture\n```\n",
        "## Parts\n",
        _overview(data, parts) + "\n",
        "## Promises\n",
        _promises(data) + "\n",
        "## Invariants\n",
        _invariants(data, parts) + "\n",
        "## Details\n",
        *_sections(data, parts),
        _mutation(),
    ]
    return "\n".join(block for block in blocks if block).rstrip("\n") + "\n"


def write(data: dict[str, Any]) -> None:
    """Write the page and the badge."""
    PAGE.write_text(render(data), "utf-8")
    BADGE.write_text(badge(data), "utf-8")


def record(folder: Path, seconds: float | None = None) -> None:
    """Keep the results of a run in the repository, and write the page and the badge."""
    data = collect(folder, seconds)
    write(data)
    DATA.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.page", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--from", dest="folder", type=Path, help="the results of a run, such as build/torture")
    options = parser.parse_args()
    if options.folder is not None:
        if not any((options.folder / f"{part.name}.json").exists() for part in all_parts()):
            parser.error(f"{options.folder} has no result of a part: expected a folder that `make torture` has written")
        record(options.folder)
    else:
        write(json.loads(DATA.read_text("utf-8")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
