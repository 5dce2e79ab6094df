"""The step before any test: installs the programs that are missing, and says where each of them is.

`python -m tests.support.program_setup` needs root only if something is missing. Where it cannot install a program, the
tests that need the program are skipped; with the environment variable `CI`, the step fails instead.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support.programs import PROGRAMS, Program, in_continuous_integration, missing_message

LOCK_SECONDS = 600.0
"""How long to wait for another process that holds apt's lock, such as an unattended upgrade."""

_LOCKED = ("Could not get lock", "Unable to acquire", "Unable to lock")


class AptError(Exception):
    """apt-get failed for another reason than its lock, or its lock was not free in time."""


def prepare() -> None:
    """Install missing programs where that is possible, print where each program is, and judge what is missing."""
    install(_missing())
    print("Programs of the tests:")
    for program in PROGRAMS.values():
        print(f"  {program.name:<16}{program.locate() or 'MISSING: its tests are skipped'}")
    sys.stdout.flush()
    missing = _missing()
    if missing and in_continuous_integration():
        sys.exit(missing_message(missing))
    if missing:
        print(missing_message(missing), file=sys.stderr, flush=True)


def _missing() -> list[Program]:
    return [program for program in PROGRAMS.values() if program.locate() is None]


def install(missing: Sequence[Program]) -> None:
    """Install programs from Debian's packages, in one step. Does nothing without root or apt-get."""
    if not missing or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    packages = sorted({program.package for program in missing})
    print(f"Installing what the tests need: {', '.join(packages)}", file=sys.stderr, flush=True)
    # The tests need the server programs, not the cluster that the package would create and start.
    Path("/etc/postgresql-common").mkdir(exist_ok=True)
    conf = Path("/etc/postgresql-common/createcluster.conf")
    if not conf.exists():
        conf.write_text("create_main_cluster = false\n")
    try:
        run_apt("update", "-qq")
        run_apt("install", "-y", "-qq", *packages)
    except AptError as error:
        print(error, file=sys.stderr, flush=True)


def run_apt(*arguments: str, patience: float = LOCK_SECONDS) -> None:
    """Run apt-get; while another process holds its lock, wait and try again for up to `patience` seconds."""
    # RUNLEVEL=1 keeps Debian's packages from starting their services.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", "LC_ALL": "C"}
    deadline = time.monotonic() + patience
    announced = False
    while True:
        done = subprocess.run(["apt-get", *arguments], env=environment, capture_output=True, text=True)
        if done.returncode == 0:
            return
        if not any(text in done.stderr for text in _LOCKED) or time.monotonic() > deadline:
            raise AptError(f"`apt-get {' '.join(arguments)}` failed: {done.stderr.strip()[-2000:]}")
        if not announced:
            print("Another process holds apt's lock: waiting for it", file=sys.stderr, flush=True)
            announced = True
        time.sleep(1)


if __name__ == "__main__":
    prepare()
