"""Checks runs of the simulation against the model: is each of them a behaviour that the model allows?

The triggers of the simulation record every committed change of a receipt and an effect, with the process that made it.
`steps_of` writes each change as an action of the model, and TLC must be able to take these actions one after the other,
with the same status and attempts after each. So the model describes the code that ran.

python -m proof.traces --seeds 0:100
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from proof.arguments import at_least, seed_range
from proof.check import INVARIANTS
from proof.results import write_result
from proof.simulate import repeatable, run_all
from proof.simulation.planted import PLANTS
from proof.simulation.run import Run
from proof.simulation.scenario import ATTEMPTS, EFFECT_ATTEMPTS, Scenario
from proof.tlc import Report, run_tlc

MAX_REPLAYS = 4
Step = dict[str, Any]


@dataclass
class Mapping:
    """Maps the changes of one run to actions of the model. Each lease has a process of the model, called a slot."""

    steps: list[Step] = field(default_factory=list)
    slots: int = 1
    _free: list[str] = field(default_factory=list)
    _held: dict[tuple[str, str, Any], str] = field(default_factory=dict)  # (kind, process, row) → slot
    _pending: list[Step] = field(default_factory=list)  # ledger rows and effects of the current transaction

    def add(self, action: str, **arguments: Any) -> None:
        self.steps.append({"a": action, **arguments})

    def take(self) -> str:
        if self._free:
            return self._free.pop()
        self.slots += 1
        return f"s{self.slots}"

    def hold(self, kind: str, row: Step) -> str:
        slot = self._held[kind, row["process"], row["row"]] = self.take()
        return slot

    def let_go(self, kind: str, row: Step) -> str:
        """The slot of the process that made a change. If it never leased the row, TLC rejects the step."""
        slot = self._held.pop((kind, row["process"], row["row"]), None)
        if slot is None:
            return "s1"
        self._free.append(slot)
        return slot

    def rescuer(self) -> str:
        slot = self.take()
        self._free.append(slot)
        return slot

    # -- changes --------------------------------------------------------------------------------------------------

    def change(self, row: Step) -> None:
        if row["kind"] == "ledger" or (row["kind"] == "effect" and row["before"] is None):
            self._pending.append(row)
        elif row["kind"] == "effect":
            self._effect(row)
        elif row["kind"] == "pruned":
            if row["consumer"] == "main":
                self.add("Age", e=row["event"])
                self.add("Prune", e=row["event"])
        elif row["before"] is not None:
            self._receipt(row)
        elif row["consumer"] == "main":
            self.add("Deliver", e=row["event"])
            self.add("Claim", e=row["event"])

    def _receipt(self, row: Step) -> None:
        receipt = {"r": (row["event"], row["consumer"])}
        after = {**receipt, "status": row["after"], "attempts": row["attempts"]}
        if row["after"] == "processing":
            self.add("Lease", p=self.hold("receipt", row), **after)
        elif row["before"] != "processing":
            self.add("Replay", **after)
        elif row["after"] == "processed":
            slot, pending = self.let_go("receipt", row), self._pending
            self._pending = []
            self.add("Run", p=slot, raises=not any(change["kind"] == "ledger" for change in pending))
            self.add("SettleProcessed", p=slot, records=any(change["kind"] == "effect" for change in pending), **after)
        elif row["attempts"] < row["attempts_before"]:
            self.add("Release", p=self.let_go("receipt", row), **after)
        elif row["outcome"] == "crashed":
            slot = self.rescuer()
            self.add("Expire", **receipt)
            self.add("FindExpired", p=slot, **receipt)
            self.add("SettleFailed", p=slot, givesUp=False, **after)
        else:
            slot = self.let_go("receipt", row)
            self.add("Run", p=slot, raises=True)
            self.add("SettleFailed", p=slot, givesUp=row["after"] == "failed" and row["attempts"] < ATTEMPTS, **after)

    def _effect(self, row: Step) -> None:
        effect = {"x": (row["event"].removeprefix("notify:"), 0)}
        after = {**effect, "status": row["after"], "attempts": row["attempts"]}
        if row["after"] == "performing":
            self.add("LeaseEffect", p=self.hold("effect", row), **after)
        elif row["attempts"] < row["attempts_before"]:
            self.add("ReleaseEffect", p=self.let_go("effect", row), **after)
        elif row["after"] == "done" or ("effect", row["process"], row["row"]) in self._held:
            slot = self.let_go("effect", row)
            if row["after"] != "done" or row["was_answered"]:
                self.add("CallTarget", p=slot, raises=row["after"] != "done")
            self.add("SettleEffect", p=slot, **after)
        else:
            slot = self.rescuer()
            self.add("ExpireEffect", **effect)
            self.add("FindExpiredEffect", p=slot, **effect)
            self.add("SettleEffect", p=slot, **after)

    def ack(self, event: str) -> None:
        self.add("Deliver", e=event)
        self.add("ClaimStored", e=event)
        self.add("Ack", e=event)


def steps_of(run: Run) -> Mapping:
    """The actions of the model for a run: its acks, and its changes in the order of their commits."""
    mapping = Mapping()
    acks = sorted(run.acks)
    answered = sorted(run.answers)
    for row in run.trace:
        while acks and acks[0][0] < row["id"]:
            mapping.ack(acks.pop(0)[1])
        if row["kind"] == "effect":
            row["was_answered"] = any(
                at < row["id"] and process == row["process"] and f"notify:{event}" == row["event"]
                for at, process, event in answered
            )
        mapping.change(row)
    for _, event in acks:
        mapping.ack(event)
    return mapping


def to_tla(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"<<{', '.join(map(to_tla, value))}>>"
    if isinstance(value, dict):
        return f"[{', '.join(f'{name} |-> {to_tla(item)}' for name, item in value.items())}]"
    return str(value)


@dataclass(frozen=True)
class Validated:
    """How TLC judged some runs."""

    runs: int
    steps: int
    report: Report
    rejected: str | None


def validate(runs: Sequence[Run]) -> Validated:
    """Check runs with the same consumers against the model."""
    mappings = [steps_of(run) for run in runs]
    lines = ",\n".join("<<" + ",\n".join(map(to_tla, mapping.steps)) + ">>" for mapping in mappings)
    data = f"---- MODULE TraceData ----\nTraces == <<\n{lines}\n>>\n====\n"
    events = sorted({event for run in runs for event in Scenario(run.seed).events})
    slots = [f"s{number}" for number in range(1, max(mapping.slots for mapping in mappings) + 1)]
    many = 1_000_000
    constants = {
        "Events": _set(events),
        "Consumers": _set(Scenario(runs[0].seed).consumers),
        "Processes": _set(slots),
        "MaxAttempts": ATTEMPTS,
        "MaxEffectAttempts": EFFECT_ATTEMPTS,
        "MaxReplays": MAX_REPLAYS,
        "MaxDeliveries": many,
        "MaxFaults": many,
        "OneTask": "FALSE",
        "Bug": '"none"',
    }
    configuration = "CONSTANTS\n" + "".join(f"  {name} = {value}\n" for name, value in constants.items())
    configuration += f"INIT TraceInit\nNEXT TraceNext\nINVARIANTS {' '.join(INVARIANTS)}\n"
    report = run_tlc("OncehookTrace.tla", configuration, extra={"TraceData": data}, workers=2, deadlock=True)
    rejected = None
    if report.violated is not None:
        last = dict(re.findall(r"/\\ (run|position) = (\d+)", report.output)[-2:])
        number, position = int(last["run"]), int(last["position"])
        step = mappings[number - 1].steps[position - 1 : position]
        rejected = f"seed {runs[number - 1].seed}, step {position}: {report.violated} at {step}"
    return Validated(len(runs), sum(len(mapping.steps) for mapping in mappings), report, rejected)


def _set(names: Sequence[str]) -> str:
    return f"{{{', '.join(map(to_tla, names))}}}"


def validate_all(runs: Sequence[Run]) -> list[Validated]:
    """Check all runs, those with the same consumers together."""
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        groups.setdefault(tuple(Scenario(run.seed).consumers), []).append(run)
    return [validate(group) for group in groups.values()]


def summary(validated: Sequence[Validated], seeds: str, seconds: float) -> dict[str, Any]:
    """The results as JSON."""
    runs, steps = sum(one.runs for one in validated), sum(one.steps for one in validated)
    rejected = [one.rejected for one in validated if one.rejected is not None]
    return {
        "title": "Simulated runs replayed against the model",
        "statement": "TLC accepts every recorded run of the simulation as a behaviour of the model.",
        "ok": not rejected,
        "seconds": round(seconds, 1),
        "facts": [["runs", runs], ["steps of the model", steps], ["runs that the model rejects", len(rejected)]],
        "command": f"python -m proof.traces --seeds {seeds}",
        "runs": runs,
        "steps": steps,
        "rejected": rejected,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proof.traces", description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seeds", type=seed_range, default=range(100), help="check these seeds, such as 0:300")
    parser.add_argument("--jobs", type=at_least(1), default=os.cpu_count() or 1, help="seeds that run at the same time")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="plant a known bug")
    options = parser.parse_args()
    seeds: range = options.seeds
    began = time.monotonic()
    runs = list(run_all(seeds, options.jobs, options.plant, with_trace=True))
    validated = validate_all(runs)
    for one in validated:
        result = one.rejected or "all are behaviours of the model"
        print(f"{one.runs} runs, {one.steps:,} steps, {one.report.seconds:.1f} s: {result}")
    if options.plant is None:
        write_result("traces", summary(validated, f"{seeds.start}:{seeds.stop}", time.monotonic() - began))
    return int(any(one.rejected for one in validated))


if __name__ == "__main__":
    repeatable("proof.traces")
    sys.exit(main())
