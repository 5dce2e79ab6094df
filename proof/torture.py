"""Runs every part of the proof, in four lanes, and writes docs/proof.md from the results.

python -m proof.torture                      all parts: what `make torture` runs
python -m proof.torture --only simulation    one part, without the page
python -m proof.torture --list
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proof import page
from proof.parts import COMPUTING, MEASURED, NICE, ROOT, TESTING, WAITING, Part, all_parts
from tests.support.servers import in_memory

LIMIT_MINUTES = 60.0
"""A part that runs longer hangs, and is ended."""
GRACE = 20.0


@dataclass
class Running:
    """A part as a process, and its result."""

    part: Part
    folder: Path
    long: bool = False
    process: "subprocess.Popen[bytes] | None" = None
    began: float | None = None
    seconds: float = 0.0
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.part.name}.log"

    @property
    def state(self) -> str:
        if not self.result:
            return "waiting" if self.began is None else "running"
        return "ok" if self.result["ok"] else "FAILED"

    def run(self) -> None:
        """Run it to its end, with the priority of its lane."""
        self.began = time.monotonic()
        file = self.folder / f"{self.part.name}.json"
        file.unlink(missing_ok=True)
        environment = {**os.environ, "ONCEHOOK_PROOF_DIR": str(self.folder), "ONCEHOOK_PROOF_PART": self.part.name}
        if self.part.in_memory and (memory := in_memory()) is not None:
            environment["TMPDIR"] = str(memory)
        start = [sys.executable, "-m", "proof.priority", str(NICE[self.part.lane])]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603  # a command of parts.py
                [*start, *self.part.command(long=self.long)],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds = time.monotonic() - self.began
        self._read_result(file, self.process.returncode, usage.ru_utime + usage.ru_stime)

    def _read_result(self, file: Path, code: int, cpu_seconds: float) -> None:
        written = json.loads(file.read_text()) if file.exists() else {}
        ok = code == 0 and written.get("ok", True) and bool(written)
        more = {"seconds": round(self.seconds, 1), "cpu_seconds": round(cpu_seconds, 1), "code": code}
        result = {**written, **more, "ok": ok, "command": self.part.repeat}
        file.write_text(json.dumps(result, indent=2) + "\n")
        self.result = result

    def stop(self) -> None:
        """Interrupt it, as Ctrl-C does, so that it stops its own servers. Then kill its remaining processes."""
        process = self.process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGINT)  # Popen.send_signal could reap the process, for which `run` waits
        deadline = time.monotonic() + GRACE
        while process.returncode is None and time.monotonic() < deadline:
            time.sleep(0.1)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


class Lane(threading.Thread):
    """Runs its parts one after the other. It waits until the lane `after` has run its parts that must run alone."""

    def __init__(self, name: str, parts: list[Running], after: "Lane | None" = None) -> None:
        super().__init__(name=name, daemon=True)
        self.parts = parts
        self.after = after
        self.is_stopped = False

    def run(self) -> None:
        while self.after is not None and self.after.is_alone and not self.is_stopped:
            time.sleep(0.5)
        for running in self.parts:
            if not self.is_stopped:
                running.run()

    @property
    def is_alone(self) -> bool:
        """Whether a part that must not be disturbed runs, or will run."""
        return self.is_alive() and any(one.part.is_alone and not one.result for one in self.parts)

    def stop(self) -> None:
        self.is_stopped = True
        for running in self.parts:
            running.stop()


# -- what a person sees ------------------------------------------------------------------------------------------------


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def progress(parts: list[Running], began: float) -> str:
    """One line: the time, how many parts have ended, and which run since when."""
    now = time.monotonic()
    ended = sum(bool(running.result) for running in parts)
    running = [
        f"{one.part.name} {clock(now - one.began)} of about {clock(one.part.minutes * 60)}"
        for one in parts
        if one.began is not None and not one.result
    ]
    return f"{clock(now - began)}  {ended}/{len(parts)} parts  " + "  |  ".join(running)


class Screen:
    """Shows the progress: as one line that changes in a terminal, otherwise as a line now and then."""

    def __init__(self, parts: list[Running]) -> None:
        self.parts, self.began = parts, time.monotonic()
        self.is_live = sys.stdout.isatty()
        self.shown: set[str] = set()
        self.last = 0.0

    def update(self) -> None:
        clear = "\r\x1b[K" if self.is_live else ""
        for running in self.parts:
            if running.result and running.part.name not in self.shown:
                self.shown.add(running.part.name)
                print(f"{clear}{running.part.name:<19}{running.state:<8}{clock(running.seconds):>6}", flush=True)
        if self.is_live:
            print(f"{clear}{progress(self.parts, self.began)}", end="", flush=True)
        elif time.monotonic() - self.last >= 30:
            self.last = time.monotonic()
            print(progress(self.parts, self.began), flush=True)

    def summary(self) -> None:
        print("\r\x1b[K" if self.is_live else "")
        print(f"{'part':<19}{'result':<9}{'time':>6}{'CPU':>8}  what it did")
        for running in self.parts:
            facts = ", ".join(page.fact(*one) for one in page.facts(running.result) if isinstance(one[1], int))
            cpu = clock(running.result.get("cpu_seconds", 0.0))
            print(f"{running.part.name:<19}{running.state:<9}{clock(running.seconds):>6}{cpu:>8}  {facts[:100]}")
        print(f"{clock(time.monotonic() - self.began)} in total")


def report_failures(parts: list[Running]) -> int:
    """Print how to repeat each failure. Returns how many parts failed."""
    failed = [running for running in parts if running.state != "ok"]  # including a part whose lane ended with an error
    for running in failed:
        log = running.log.relative_to(ROOT) if running.log.is_relative_to(ROOT) else running.log
        print(f"\n{running.part.name} failed. Log: {log}. Repeat: {running.part.repeat}")
        for failure in running.result.get("failures", [])[:10]:
            print(f"  {failure}")
    return len(failed)


# -- the program -------------------------------------------------------------------------------------------------------


def run_lanes(parts: list[Running]) -> Screen:
    """Run all lanes at the same time. If it is interrupted, end everything that was started."""
    of_lane = {lane: [one for one in parts if one.part.lane == lane] for lane in NICE}
    measured = Lane(MEASURED, of_lane[MEASURED])
    computing = Lane(COMPUTING, of_lane[COMPUTING])
    lanes = [measured, computing, *(Lane(name, of_lane[name], measured) for name in (WAITING, TESTING))]
    screen = Screen(parts)
    for lane in lanes:
        lane.start()
    try:
        while any(lane.is_alive() for lane in lanes):
            screen.update()
            time.sleep(0.5)
            for one in parts:
                if one.process and not one.result and time.monotonic() - (one.began or 0) > LIMIT_MINUTES * 60:
                    one.stop()
    except KeyboardInterrupt:
        print("\nInterrupted: the parts that run are stopped.", flush=True)
        for lane in lanes:
            lane.stop()
        raise
    screen.update()
    return screen


def main(known: list[Part]) -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.torture", description=str(__doc__).partition("\n")[0])
    names = [part.name for part in known]
    parser.add_argument("--only", action="append", choices=names, metavar="PART", help=f"only this: {', '.join(names)}")
    parser.add_argument("--list", action="store_true", help="list the parts with their commands, and end")
    parser.add_argument("--long", action="store_true", help="run the tests at the length of a night")
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "torture", help="where logs and results go")
    options = parser.parse_args()
    if options.list:
        for part in known:
            command = " ".join(part.command(long=options.long)[1:])
            print(f"{part.name:<19}{part.lane:<10}about {part.minutes:>4} min  python {command}")
        return 0
    chosen = [part for part in known if not options.only or part.name in options.only]
    folder = options.results.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    parts = [Running(part, folder, options.long) for part in chosen]
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts a job in the background without it
    try:
        screen = run_lanes(parts)
    except KeyboardInterrupt:
        return 130
    screen.summary()
    if not options.only:
        page.record(folder, seconds=time.monotonic() - screen.began)
        print(f"wrote {page.PAGE.relative_to(ROOT)}, {page.BADGE.relative_to(ROOT)} and {page.DATA.relative_to(ROOT)}")
    return int(report_failures(parts) > 0)


if __name__ == "__main__":
    sys.exit(main(all_parts()))
