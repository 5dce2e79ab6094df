"""Delivers events at a constant rate for minutes, and measures acks, memory and descriptors.

python -m proof.load                              500 events a second for five minutes
python -m proof.load --seconds 60 --rate 200
"""

import argparse
import sys
import time
from typing import Any

from proof.deliveries.run import run_program, say_to_people
from proof.load.run import AFTER, BEFORE, PHASES, Outcome, run
from proof.results import write_result

MOST_MEGABYTES, MOST_DESCRIPTORS = 10.0, 3.0
"""How much more the server may use in the last minute than in the second."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m proof.load", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--rate", type=float, default=500.0, help="events per second (default 500)")
    parser.add_argument(
        "--goal", type=float, default=100.0, help="the longest p99 of acks in milliseconds; 0: none (default 100)"
    )
    options = parser.parse_args()
    if options.seconds < 5 or options.rate < 1:
        parser.error("expected at least --seconds 5 and --rate 1")
    began = time.monotonic()
    outcome = run_program(run(options.rate, options.seconds, say_to_people))
    result = result_of(outcome, options.goal, time.monotonic() - began)
    print("\n".join(f"{label}: {value}" for label, value in result["facts"]))
    write_result("load", result)
    if result["problems"]:
        print("\n".join(["", *result["problems"], f"Repeat it with: {result['command']}"]), file=sys.stderr)
    return int(bool(result["problems"]))


def result_of(outcome: Outcome, goal: float, seconds: float) -> dict[str, Any]:
    """Return the content of `load.json`."""
    phases = {name: outcome.phase(name) for name in PHASES}
    memory = [round(outcome.mean(part, lambda sample: sample.megabytes), 1) for part in (BEFORE, AFTER)]
    descriptors = [round(outcome.mean(part, lambda sample: sample.descriptors), 1) for part in (BEFORE, AFTER)]
    problems = [*outcome.problems, *_latency_problems(phases, goal)]
    if memory[1] - memory[0] > MOST_MEGABYTES:
        problems.append(f"the memory of the server grew from {memory[0]} MB to {memory[1]} MB")
    if descriptors[1] - descriptors[0] > MOST_DESCRIPTORS:
        problems.append(f"the server had {descriptors[0]} descriptors, and {descriptors[1]} at the end")
    return {
        "title": "Sustained load, PostgreSQL",
        "statement": f"{outcome.rate:g} events a second for {outcome.seconds:g} s, with their handlers: acks stay "
        f"under {goal:g} ms (p99) while slow and oversized clients are there, and memory and descriptors stay flat.",
        "ok": not problems,
        "seconds": round(seconds, 1),
        "facts": _facts(outcome, phases, memory, descriptors),
        "command": f"python -m proof.load --rate {outcome.rate:g} --seconds {outcome.seconds:g} --goal {goal:g}",
        "events": len(outcome.load.acked),
        "phases": phases,
        "megabytes": {
            "first": memory[0],
            "last": memory[1],
            "most": max((s.megabytes for s in outcome.samples), default=0.0),
        },
        "descriptors": {
            "first": descriptors[0],
            "last": descriptors[1],
            "most": max((s.descriptors for s in outcome.samples), default=0),
        },
        "hostile": dict(sorted(outcome.hostile.outcomes.items())),
        "problems": problems,
    }


def _latency_problems(phases: dict[str, dict[str, float]], goal: float) -> list[str]:
    return [
        f"the acks of the phase {name!r} have a p99 of {figures['p99']} ms, and the goal is {goal:g} ms"
        for name, figures in phases.items()
        if goal and figures and figures["p99"] >= goal
    ]


def _facts(
    outcome: Outcome, phases: dict[str, dict[str, float]], memory: list[float], descriptors: list[float]
) -> list[list[Any]]:
    facts: list[list[Any]] = [["events", len(outcome.load.acked)], ["events per second", outcome.rate]]
    facts += [
        [f"ack, {name}", ", ".join(f"{label} {value} ms" for label, value in figures.items())]
        for name, figures in phases.items()
    ]
    facts.append(["memory of the server, second and last minute", f"{memory[0]} MB, {memory[1]} MB"])
    facts.append(["descriptors of the server, second and last minute", f"{descriptors[0]}, {descriptors[1]}"])
    hostile = ", ".join(f"{kind}: {times}" for kind, times in sorted(outcome.hostile.outcomes.items()))
    return [*facts, ["responses to hostile clients", hostile]]


if __name__ == "__main__":
    sys.exit(main())
