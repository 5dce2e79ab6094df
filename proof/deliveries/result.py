"""The result of a run, for people and for the page of the proof."""

from typing import Any

from proof.deliveries.kinds import KINDS, NAMES
from proof.deliveries.run import Options, Outcome
from tests.support.counts import DATABASE_KILLS

TITLES = {
    "deliveries": "Deliveries under faults, PostgreSQL",
    "deliveries-sqlite": "Deliveries under faults, SQLite",
    "database-kills": "PostgreSQL killed under load",
}


def command_of(options: Options) -> str:
    """The command that repeats a run."""
    parts = [f"python -m proof.deliveries --database {options.database} --deliveries {options.deliveries}"]
    parts.append(f"--seed {options.seed} --rate {options.rate}")
    if options.kills is not None:
        parts.append(f"--kills {options.kills}")
    elif options.kinds != NAMES:
        parts.append(f"--kinds {','.join(sorted(options.kinds, key=lambda kind: int(kind[1:])))}")
    return " ".join(parts)


def result_of(outcome: Outcome) -> dict[str, Any]:
    """Return the content of `NAME.json`."""
    options, plan, answers = outcome.options, outcome.plan, outcome.answers
    names = {kind.name: kind.what for kind in KINDS}
    figures = {
        "deliveries": len(plan.deliveries),
        "events": plan.events,
        "duplicates": plan.duplicates,
        "reordered": plan.reordered,
        "acked": answers.acks,
        "refused": sum(answers.refused.values()),
        "ambiguous": answers.ambiguous,
        "unreachable": answers.unreachable,
        "lost_database_replies": outcome.unanswered,
        "kinds": len(outcome.applied),
        "faults": sum(outcome.applied.values()),
    }
    return {
        "title": TITLES[options.name],
        "statement": _statement(outcome),
        "ok": not outcome.problems,
        "seconds": round(outcome.seconds, 1),
        "facts": _facts(outcome, figures),
        "command": command_of(options),
        **figures,
        "applied": [{"kind": kind, "what": names[kind], "times": times} for kind, times in outcome.applied.items()],
        "exits": dict(sorted(outcome.exits.items())),
        "seed": options.seed,
        "database": options.database,
        "problems": outcome.problems,
    }


def _statement(outcome: Outcome) -> str:
    if outcome.problems:
        return f"The run found violations: {'; '.join(outcome.problems)[:500]}"
    faults = f"{len(outcome.applied)} kinds of faults"
    if outcome.options.kills is not None:
        faults = f"{outcome.applied['F8']} kills (SIGKILL) of the whole PostgreSQL server"
    return (
        f"Under {faults}, every acked event is stored byte for byte and was applied exactly once, each object ends "
        "with its newest version, no event is stuck, and `oncehook fsck` finds no violation."
    )


def _facts(outcome: Outcome, figures: dict[str, int]) -> list[list[Any]]:
    labels = {
        "deliveries": "deliveries",
        "duplicates": "of these, duplicates",
        "reordered": "of these, sent after a later version of their object",
        "acked": "acked (2xx)",
        "refused": "answered with an error, then sent again",
        "ambiguous": "without a response, then sent again",
        "lost_database_replies": "statements whose reply PostgreSQL never sent, at the proxy",
        "kinds": "kinds of faults",
        "faults": "faults" if outcome.options.kills is None else DATABASE_KILLS,
    }
    facts: list[list[Any]] = [[label, figures[name]] for name, label in labels.items()]
    each = ", ".join(f"{kind} {times}" for kind, times in outcome.applied.items())
    return [*facts, ["each kind", each], ["seed", str(outcome.options.seed)], ["seconds", round(outcome.seconds, 1)]]
