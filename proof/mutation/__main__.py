"""`make mutation`: mutates the modules of targets.toml, and writes how many mutants the tests notice to score.json."""

import json
import platform
import subprocess
import sys
import time
import tomllib
from argparse import ArgumentParser
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from proof.mutation.session import SEED, MutationSession, Run

FOLDER = Path(__file__).parent
SCORE = FOLDER / "score.json"
LEAST = 0.85
MEASURES_TIME = ["providers/test_verify.py::test_verify_takes_at_most_the_time_of_three_hmacs"]
TARGETS: dict[str, Any] = tomllib.loads((FOLDER / "targets.toml").read_text("utf-8"))
EQUIVALENT: dict[str, str] = tomllib.loads((FOLDER / "equivalent.toml").read_text("utf-8"))


def main() -> None:
    parser = ArgumentParser(prog="python -m proof.mutation", description=__doc__)
    parser.add_argument("--only", choices=TARGETS, action="append", help="only this group; may be repeated")
    parser.add_argument("--sample", type=int, help="at most this many mutants of each file, chosen with a fixed seed")
    parser.add_argument("--match", default="", help="only mutants whose name contains this text; writes no score")
    options = parser.parse_args()
    names = options.only or list(TARGETS)
    if len(names) > 1:  # each group in its own process: pytest collects once
        more = [f"--sample={options.sample}"] if options.sample else []
        for name in names:
            command = [sys.executable, "-m", "proof.mutation", "--only", name, *more]
            subprocess.run(command, check=False)  # noqa: S603  # this program
    else:
        run_group(names[0], options.sample, options.match)
    sys.exit(print_scores(names))


def run_group(name: str, sample: int | None, match: str) -> None:
    target = TARGETS[name]
    Path("build").mkdir(exist_ok=True)
    plugin, began = MutationSession(target["files"], sample, match), time.monotonic()
    arguments = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0"]
    arguments += [f"--deselect=tests/{test}" for test in MEASURES_TIME]
    arguments += [f"tests/{test}" for test in target["tests"]]
    status = pytest.main(arguments, [plugin])
    if not plugin.runs:
        sys.exit(f"{name}: nothing ran (pytest: {status!r})")
    Path(f"build/mutation-{name}.json").write_text(json.dumps([run.__dict__ for run in plugin.runs], indent=1))
    if not match:
        write_score(name, score_of(plugin.runs, plugin.available, target["files"], time.monotonic() - began))


def score_of(runs: list[Run], available: int, files: list[str], seconds: float) -> dict[str, Any]:
    survived = [run.mutant for run in runs if run.killed_by is None]
    unnoticed = [name for name in survived if name not in EQUIVALENT]
    equivalent = len(survived) - len(unnoticed)
    for run in runs:
        if run.mutant in EQUIVALENT and run.killed_by is not None:
            print(f"not equivalent, {run.killed_by} kills it: {run.mutant}")
    if len(runs) == available:
        for name in EQUIVALENT:
            if name.split(" ")[0] in files and name not in {run.mutant for run in runs}:
                print(f"equivalent.toml names a mutant that does not exist: {name}")
    killed = len(runs) - len(survived)
    return {
        "files": files,
        "available": available,
        "mutants": len(runs),
        "killed": killed,
        "of_them_by_timeout": sum(run.timeout for run in runs),
        "equivalent": equivalent,
        "survived": len(unnoticed),
        "score": round(killed / max(1, len(runs) - equivalent), 4),
        "survivors": unnoticed,
        "seconds": round(seconds),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": {"python": platform.python_version(), "oncehook": version("oncehook"), "pytest": version("pytest")},
    }


def write_score(name: str, score: dict[str, Any]) -> None:
    """Write the file that docs/mutation.md and docs/proof.md show, with the new score of one group."""
    known = json.loads(SCORE.read_text("utf-8"))["groups"] if SCORE.exists() else {}
    known[name] = score
    groups = {group: known[group] for group in TARGETS if group in known}
    result = {
        "title": "Mutation testing",
        "statement": f"The tests find at least {LEAST:.0%} of the deliberate mistakes in each group.",
        "ok": list(groups) == list(TARGETS) and all(group["score"] >= LEAST for group in groups.values()),
        "seconds": float(sum(group["seconds"] for group in groups.values())),
        "facts": [[name, f"{group['score']:.1%} of {group['mutants']}"] for name, group in groups.items()],
        "command": "make mutation",
        "least": LEAST,
        "seed": SEED,
        "groups": groups,
    }
    SCORE.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


def print_scores(names: list[str]) -> int:
    """Print the table. Returns 1 if a group is below the least score, or has none."""
    groups = json.loads(SCORE.read_text("utf-8"))["groups"] if SCORE.exists() else {}
    print(f"{'group':12}{'mutants':>9}{'killed':>9}{'equivalent':>12}{'survived':>10}{'score':>9}")
    for name in names:
        if name in groups:
            g = groups[name]
            counts = f"{g['mutants']:9}{g['killed']:9}{g['equivalent']:12}{g['survived']:10}"
            print(f"{name:12}{counts}{g['score']:9.1%}")
    return int(any(groups.get(name, {}).get("score", 0) < LEAST for name in names))


if __name__ == "__main__":
    main()
