"""Runs seeds of the simulation.

python -m proof.simulate --seeds 0:5000     many seeds, on all cores
python -m proof.simulate --seed 23          one seed, with its log
python -m proof.simulate --seed 23 --plant unfenced-settle
"""

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from proof.arguments import at_least, seed_range
from proof.results import write_result
from proof.simulation.planted import PLANTS, planted
from proof.simulation.run import Run, run_seed

CHUNK = 20
SHRINK_RUNS = 80
OUTSIDE = ("SIGSTOP", "SIGSTOP in a handler", "graceful stop", "clock jump", "client disconnect", "lost response")
"""Faults that are not at a statement."""

FAULTS = ("kill", *OUTSIDE)
DELIVERIES = ("duplicate delivery", "reordered event", "replay", "pruned receipts")


@dataclass
class Summary:
    """The results of many seeds."""

    seeds: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)
    simulated_seconds: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    first: int = 0

    def add(self, run: Run) -> None:
        self.seeds += 1
        self.counts.update(run.counts)
        self.simulated_seconds += run.seconds
        if run.failure is not None:
            self.failures[run.seed] = run.failure

    @property
    def faults(self) -> int:
        """How many faults were injected. A process that dies at a statement is one fault, not two."""
        at_statements = sum(number for name, number in self.counts.items() if name.startswith("error "))
        return at_statements + sum(self.counts[name] for name in FAULTS)

    def as_json(self) -> dict[str, Any]:
        crashes = {name: number for name, number in self.counts.items() if name.startswith("crash ")}
        errors = {name: number for name, number in self.counts.items() if name.startswith("error ")}
        return {
            "title": "Deterministic simulation",
            "statement": "The real code kept every invariant on a simulated clock and scheduler, with faults before, in"
            " and after its statements and commits.",
            "ok": not self.failures,
            "seconds": round(self.seconds, 1),
            "facts": [
                ["seeds", self.seeds],
                ["seeds that failed", len(self.failures)],
                ["faults", self.faults],
                ["processes that died", self.counts["kill"]],
                ["deaths at a statement, a commit or a connect", sum(crashes.values())],
                ["errors and lost replies at them", sum(errors.values())],
                *([name, self.counts[name]] for name in (*OUTSIDE, *DELIVERIES)),
                ["simulated seconds", round(self.simulated_seconds)],
                ["seconds of CPU time", round(self.cpu_seconds, 1)],
            ],
            "command": f"python -m proof.simulate --seeds {self.first}:{self.first + self.seeds}",
            "seeds": self.seeds,
            "failures": self.failures,
            "faults": self.faults,
            "kills": self.counts["kill"],
            "counts": dict(sorted(self.counts.items())),
            "simulated_seconds": round(self.simulated_seconds),
            "cpu_seconds": round(self.cpu_seconds, 1),
            "seeds_per_cpu_second": round(self.seeds / self.cpu_seconds, 1) if self.cpu_seconds else None,
        }


def run_chunk(seeds: range, plant: str | None = None, *, with_trace: bool = False) -> list[Run]:
    """Run some seeds in this Python process. Only failures keep their log."""
    with planted(plant):
        runs = [_run(seed, with_trace) for seed in seeds]
    for run in runs:
        if run.failure is None:
            run.log = []
    return runs


def _run(seed: int, with_trace: bool) -> Run:
    try:
        return run_seed(seed, with_trace=with_trace)
    except Exception as error:
        raise RuntimeError(f"the simulation itself failed at seed {seed}: {error!r}") from error


def run_all(seeds: range, jobs: int, plant: str | None = None, *, with_trace: bool = False) -> Iterator[Run]:
    """Run seeds in several Python processes, and return their results as they arrive."""
    chunks = [seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK)]
    work = partial(run_chunk, plant=plant, with_trace=with_trace)
    if jobs == 1:
        for chunk in chunks:
            yield from work(chunk)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for runs in pool.map(work, chunks):
            yield from runs


def summarize(seeds: range, jobs: int, plant: str | None = None) -> Summary:
    """Run seeds, and add up what happened."""
    summary, began, used = Summary(first=seeds.start), time.monotonic(), _cpu_seconds()
    for run in run_all(seeds, jobs, plant):
        summary.add(run)
    summary.seconds, summary.cpu_seconds = time.monotonic() - began, _cpu_seconds() - used
    return summary


def _cpu_seconds() -> float:
    """The CPU time of this process and of those that it started and that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def first_failure(seeds: range, plant: str) -> Run | None:
    """Run seeds with a planted bug until one fails."""
    with planted(plant):
        return next((run for run in map(run_seed, seeds) if run.failure is not None), None)


def shrink(run: Run, plant: str | None = None) -> Run:
    """Find a run of the same seed that fails in the same way with fewer faults at statements."""
    best, kept, size = run, sorted(run.faults), max(1, len(run.faults) // 2)
    tries = 0
    with planted(plant):
        while kept and tries < SHRINK_RUNS:
            for start in range(0, len(kept), size):
                candidate = kept[:start] + kept[start + size :]
                shorter = run_seed(run.seed, only=frozenset(candidate))
                tries += 1
                if shorter.failure is not None and shorter.failure[:3] == run.failure[:3]:  # type: ignore[index]
                    best, kept = shorter, candidate
                    break
            else:
                if size == 1:
                    break
                size = max(1, size // 2)
    return best


def command(seed: int, plant: str | None = None, only: list[int] | None = None) -> str:
    """The command that repeats a run."""
    parts = [f"python -m proof.simulate --seed {seed}"]
    if plant is not None:
        parts.append(f"--plant {plant}")
    if only is not None:
        parts.append(f"--only {','.join(map(str, only)) or 'none'}")
    return " ".join(parts)


def report(run: Run, plant: str | None) -> None:
    """Print a failure: how to repeat it, and its shortest log."""
    shortest = shrink(run, plant)
    print(f"\nseed {run.seed}: {run.failure}")
    print(f"  {len(run.faults)} faults at statements, {len(shortest.faults)} after shrinking")
    print(f"  {command(run.seed, plant)}")
    print(f"  {command(run.seed, plant, sorted(shortest.faults))}")
    print("\n".join(f"    {line}" for line in shortest.log))


def _only(text: str) -> frozenset[int]:
    try:
        return frozenset() if text == "none" else frozenset(map(int, text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers such as 3,17 or none, got {text!r}") from None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.simulate", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seed", type=int, help="run one seed and print its log")
    parser.add_argument("--only", type=_only, help="with --seed: only these faults at statements, as printed, or none")
    parser.add_argument("--seeds", type=seed_range, default=range(500), help="run these seeds, such as 0:5000")
    parser.add_argument("--jobs", type=at_least(1), default=os.cpu_count() or 1, help="seeds that run at the same time")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="plant a known bug")
    options = parser.parse_args()
    if options.seed is not None:
        with planted(options.plant):
            run = run_seed(options.seed, only=options.only)
        print("\n".join(run.log))
        return int(run.failure is not None)
    summary = summarize(options.seeds, options.jobs, options.plant)
    result = summary.as_json()
    print("\n".join(f"{label}: {value:,}" for label, value in result["facts"]))
    if options.plant is None:
        write_result("simulation", result)
    for seed in list(summary.failures)[:3]:
        report(run_chunk(range(seed, seed + 1), options.plant)[0], options.plant)
    return int(bool(summary.failures))


def repeatable(module: str) -> None:
    """Start this program again if the order of a set of texts, which is part of a run, is not the same each time."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(command[0], command, {**os.environ, "PYTHONHASHSEED": "0"})  # noqa: S606  # this program


if __name__ == "__main__":
    repeatable("proof.simulate")
    sys.exit(main())
