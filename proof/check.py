"""Checks the model of the inbox, and that TLC finds every broken variant of it.

python -m proof.check            all models, with a table of states, depth and seconds
python -m proof.check --quick    one small model and one broken variant
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from proof.arguments import at_least
from proof.results import write_result
from proof.tlc import Report, TlcFailed, run_tlc

INVARIANTS = (
    "I1_DurableAck",
    "I2_AppliedOnce",
    "I3_CommitTogether",
    "I4_OneRow",
    "I6_StaleChangesNothing",
    "I7_AttemptsBounded",
    "I8_NothingVanishes",
    "I9_ReplayIsSafe",
    "I11_PublishedOnceMarked",
    "I12_WindowKept",
)
SMALL = {"MaxAttempts": 2, "MaxEffectAttempts": 1, "MaxReplays": 0, "MaxDeliveries": 1, "MaxFaults": 1}


@dataclass(frozen=True)
class Model:
    """A configuration of the model, and the invariant that TLC must find violated."""

    title: str
    bug: str = "none"
    expected: str | None = None
    processes: int = 2
    consumers: Sequence[str] = ("main",)
    bounds: dict[str, int] = field(default_factory=dict)
    liveness: bool = False

    @property
    def is_large(self) -> bool:
        return self.expected is None and not self.liveness

    @property
    def configuration(self) -> str:
        names = [f"p{number}" for number in range(1, self.processes + 1)]
        consumers = ", ".join(f'"{name}"' for name in self.consumers)
        lines = [
            "CONSTANTS",
            '  Events = {"e1"}',
            f"  Consumers = {{{consumers}}}",
            f"  Processes = {{{', '.join(names)}}}",
        ]
        lines += [f"  {name} = {name}" for name in names]
        lines += [f"  {name} = {value}" for name, value in (SMALL | self.bounds).items()]
        lines += ["  OneTask = TRUE", f'  Bug = "{self.bug}"']
        if self.liveness:
            lines += ["SPECIFICATION Spec", "PROPERTY I5_EverythingEnds"]
        else:
            lines += ["INIT Init", "NEXT Next", "SYMMETRY Symmetry", f"INVARIANTS {' '.join(INVARIANTS)}"]
        return "\n".join(lines) + "\n"

    def check(self, workers: int = 1) -> Report:
        return run_tlc("Oncehook.tla", self.configuration, workers=workers, is_short=self.expected is not None)


TINY = Model("one event, one attempt", bounds={"MaxAttempts": 1})
RIGHT = (
    Model(
        "replay and prune, 2 faults",
        bounds={"MaxEffectAttempts": 2, "MaxReplays": 1, "MaxDeliveries": 2, "MaxFaults": 2},
    ),
    Model("3 processes, 2 faults", processes=3, bounds={"MaxDeliveries": 2, "MaxFaults": 2}),
    Model("2 consumers, 2 faults", consumers=("main", "audit"), bounds={"MaxAttempts": 1, "MaxFaults": 2}),
    Model("liveness, 2 faults", liveness=True, bounds={"MaxEffectAttempts": 2, "MaxFaults": 2}),
)
TWO = ("main", "audit")
REPLAY = {"MaxReplays": 1, "MaxAttempts": 1, "MaxFaults": 0}
BROKEN = (
    Model("a 2xx before the commit", "ack before commit", "I1_DurableAck"),
    Model("SELECT, then INSERT", "select then insert", "I4_OneRow", bounds={"MaxDeliveries": 2}),
    Model("receipts of other consumers later", "copies later", "I8_NothingVanishes", consumers=TWO),
    Model("settle without the fence", "unfenced settle", "I6_StaleChangesNothing"),
    Model("work commits before the status", "status later", "I3_CommitTogether"),
    Model("effect outside the transaction", "effect outside", "I3_CommitTogether"),
    Model("attempts counted at a failure", "attempt at failure", "I7_AttemptsBounded", bounds={"MaxAttempts": 1}),
    Model("effect marked before its call", "mark before call", "I11_PublishedOnceMarked", bounds={"MaxFaults": 0}),
    Model(
        "settle of an effect without the fence",
        "unfenced effect",
        "I9_ReplayIsSafe",
        bounds={"MaxAttempts": 1, "MaxEffectAttempts": 2},
    ),
    Model("effect key with the number of the replay", "key per replay", "I9_ReplayIsSafe", bounds=REPLAY),
    Model("a replay makes effects due again", "replay resets effects", "I9_ReplayIsSafe", bounds=REPLAY),
    Model("a replay without an audit row", "replay without audit", "I9_ReplayIsSafe", bounds=REPLAY),
    Model("prune inside the window", "prune inside window", "I12_WindowKept", bounds={"MaxFaults": 0}),
    Model("prune looks at one consumer", "prune unfinished", "I12_WindowKept", consumers=TWO, bounds={"MaxFaults": 0}),
    Model("expired leases are not rescued", "no rescue", "temporal property", liveness=True),
)


@dataclass(frozen=True)
class Checked:
    model: Model
    report: Report

    @property
    def is_as_expected(self) -> bool:
        return self.report.violated == self.model.expected

    def row(self) -> dict[str, Any]:
        model, report = self.model, self.report
        return {
            "model": model.title,
            "bug": None if model.bug == "none" else model.bug,
            "expected": model.expected,
            "violated": report.violated,
            "states": report.states,
            "distinct": report.distinct,
            "depth": report.depth,
            "seconds": round(report.seconds, 1),
            "tlc": report.version,
        }

    def line(self) -> str:
        report = self.report
        found = "holds" if report.violated is None else f"violates {report.violated}"
        wrong = "" if self.is_as_expected else f"   WRONG: expected {self.model.expected or 'no violation'}"
        depth = "" if report.depth is None else str(report.depth)
        numbers = f"{report.states:>10,} {report.distinct:>10,} {depth:>5} {report.seconds:>6.1f}"
        return f"{self.model.title:42} {numbers}  {found}{wrong}"


def check_all(models: Sequence[Model], jobs: int) -> list[Checked]:
    """Check large models one after the other with all cores, and small ones at the same time."""
    checked = [Checked(model, model.check(jobs)) for model in models if model.is_large]
    with ThreadPoolExecutor(jobs) as pool:
        small = [model for model in models if not model.is_large]
        return checked + [
            Checked(model, report) for model, report in zip(small, pool.map(Model.check, small), strict=True)
        ]


def summary(checked: Sequence[Checked], seconds: float) -> dict[str, Any]:
    """The results as JSON."""
    right = [one for one in checked if one.model.expected is None]
    broken = [one for one in checked if one.model.expected is not None]
    return {
        "title": "Model checked with TLC",
        "statement": "Within its bounds, no order of steps and faults breaks an invariant of the TLA+ model, and each"
        " broken variant is found.",
        "ok": all(one.is_as_expected for one in checked),
        "seconds": round(seconds, 1),
        "facts": [
            ["models that hold", sum(one.is_as_expected for one in right)],
            ["broken variants that are found", f"{sum(one.is_as_expected for one in broken)} of {len(broken)}"],
            ["distinct states", sum(one.report.distinct for one in right)],
            ["states", sum(one.report.states for one in right)],
            ["invariants", len(INVARIANTS) + 1],
        ],
        "command": "python -m proof.check",
        "models": [one.row() for one in checked],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.check", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="check one small model and one broken variant")
    parser.add_argument("--jobs", type=at_least(1), default=os.cpu_count() or 1, help="models checked at the same time")
    options = parser.parse_args()
    models = (TINY, BROKEN[3]) if options.quick else (*RIGHT, *BROKEN)
    began = time.monotonic()
    try:
        checked = check_all(models, options.jobs)
    except TlcFailed as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'model':42} {'states':>10} {'distinct':>10} {'depth':>5} {'s':>6}  result")
    for one in checked:
        print(one.line())
    write_result("model", summary(checked, time.monotonic() - began))
    return int(not all(one.is_as_expected for one in checked))


if __name__ == "__main__":
    sys.exit(main())
