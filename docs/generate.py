"""Writes the generated blocks of the documentation: `python -m docs.generate`.

Pages are written by hand, except the blocks between `<!-- generated: NAME -->` and `<!-- end -->`. These are generated
from the tables in the source code that they describe. tests/docs/test_pages.py checks that they are current.
"""

import ast
import importlib
import inspect
import json
import re
import tomllib
from collections.abc import Callable
from copy import copy
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import click

from docs import capacity, diagrams, migrations, provider_pages, reference, schema
from docs.markdown import table
from oncehook.alerts import settings as alerts
from oncehook.alerts.rules import RULES
from oncehook.cli import COMMANDS, oncehook
from oncehook.config import settings
from oncehook.config.consumer_settings import ConsumerSettings
from oncehook.config.shard_settings import ShardSettings
from oncehook.model import values
from oncehook.model.states import TRANSITIONS, State
from oncehook.observability.log_events import LOG_EVENTS
from oncehook.observability.metrics import METRICS
from oncehook.operations.fsck_checks import CHECKS, INVARIANTS
from oncehook.receiver.ack import ERRORS
from oncehook.testing.crash_points import CRASH_POINTS, Call, InHandler, Statement, Where
from oncehook.web import settings as dashboard
from oncehook.web.api import ENDPOINTS
from proof import page as proof_page
from proof.deliveries.kinds import KINDS
from proof.planted.bugs import read_all as read_bugs

ROOT = Path(__file__).parent.parent
COLUMNS = ROOT / "src" / "oncehook" / "store" / "sql" / "columns.json"
_BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    for file in pages():
        text = file.read_text("utf-8")
        filled = fill(text)
        if filled != text:
            file.write_text(filled, "utf-8")
            print(f"wrote {file.relative_to(ROOT)}")
    if COLUMNS.read_text("utf-8") != (columns := schema.columns_json()):
        COLUMNS.write_text(columns, "utf-8")
        print(f"wrote {COLUMNS.relative_to(ROOT)}")
    diagrams.main()
    proof_page.write(json.loads(proof_page.DATA.read_text("utf-8")))
    if migrations.record():
        print(f"wrote {migrations.RECORDED.relative_to(ROOT)}")


def pages() -> list[Path]:
    """Return the path of every page, sorted."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*/README.md")])


def fill(text: str) -> str:
    """Return the page with its generated blocks regenerated."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]]().strip()}\n\n{block[3]}", text)


# -- settings -------------------------------------------------------------------------------------------------------


def settings_table() -> str:
    rows = [
        (f"`{f.name}`", _default(f.default, f.metadata["parse"]), f.metadata["help"])
        for f in _own_first(settings.Settings)
    ]
    return table(("key", "default", "meaning"), rows)


def source_settings_table() -> str:
    return _settings_of(settings.SourceSettings)


def consumer_settings_table() -> str:
    return _settings_of(ConsumerSettings)


def shard_settings_table() -> str:
    return _settings_of(ShardSettings)


def _settings_of(cls: Any) -> str:
    rows = [(f"`{f.name}`", _default(f.default, f.metadata["parse"]), f.metadata["help"]) for f in _own_first(cls)]
    return table(("key", "default", "meaning"), rows)


def _own_first(cls: Any) -> list[Any]:
    """The fields of a class, then those of its base classes, which have groups of settings."""
    return sorted(fields(cls), key=lambda field: field.name not in cls.__annotations__)


def dashboard_settings_table() -> str:
    tables: dict[str, Any] = {
        "": dashboard.DashboardSettings,
        "users.NAME.": dashboard.UserSettings,
        "tokens.NAME.": dashboard.TokenSettings,
    }
    rows = [
        (f"`{where}{f.name}`", _default(f.default, f.metadata["parse"]), f.metadata["help"])
        for where, cls in tables.items()
        for f in fields(cls)
        if f.metadata
    ]
    return table(("key under `[dashboard]`", "default", "meaning"), rows)


def alert_settings_table() -> str:
    tables: dict[str, Any] = {"": alerts.AlertSettings, "targets.NAME.": alerts.TargetSettings}
    rows = [
        (f"`{where}{f.name}`", _default(f.default, f.metadata["parse"]), f.metadata["help"])
        for where, cls in tables.items()
        for f in fields(cls)
        if f.metadata
    ]
    return table(("key under `[alerts]`", "default", "meaning"), rows)


def rules_table() -> str:
    """The alert rules with example notifications for a source `stripe`."""
    defaults = {f.name: f for f in fields(alerts.Thresholds)}
    facts = {"source": "stripe", "value": "9", "threshold": "5", "provider": "Stripe", "horizon": "3d"}
    rows = []
    for rule in RULES:
        threshold = defaults[rule.setting]
        default = _default(threshold.default, threshold.metadata["parse"]) or "off"
        units = {"value": "2d 6h", "threshold": "6h"} if rule.unit == "seconds" else {}
        example = f"{rule.sentence.format_map(facts | units)} {rule.remedy.format_map(facts)}"
        rows.append((f"`{rule.name}`", f"`{rule.setting}`", default, example))
    return table(("rule", "threshold", "default", "example notification"), rows)


def endpoints_table() -> str:
    rows = [(f"`{e.method} {e.path}`", f"`{e.scope}`", e.summary) for e in ENDPOINTS]
    return table(("endpoint", "scope", "description"), rows)


def _default(value: Any, parse: Callable[[Any], Any]) -> str:
    """Return a default value as written in the configuration file."""
    parse = inspect.unwrap(parse)
    if value in (None, (), ""):
        return ""
    if parse is values.duration:
        return f'`"{values.as_duration(value)}"`'
    if parse is values.size:
        return f'`"{value // 2**20}MiB"`'
    if isinstance(value, tuple):
        return f"`{list(value)}`".replace("'", '"')
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


# -- metrics --------------------------------------------------------------------------------------------------------


def metrics_table() -> str:
    rows = [
        (f"`{name}`", kind, " ".join(f"`{label}`" for label in labels), meaning)
        for name, (kind, labels, meaning) in METRICS.items()
    ]
    return table(("metric", "kind", "labels", "meaning"), rows)


# -- the lifecycle --------------------------------------------------------------------------------------------------


def lifecycle() -> str:
    rows = [
        (f"`{before}`" if before else "(no row yet)", ", ".join(f"`{after}`" for after in State if after in nexts))
        for before, nexts in TRANSITIONS.items()
    ]
    return table(("from", "to"), rows)


# -- errors and log messages -----------------------------------------------------------------------------------------

WHEN = {
    "bad_signature": "No signature in the request matches a secret of the source, or its timestamp is not a number.",
    "stale_timestamp": "The signature is right, but its timestamp is too far in the past or in the future.",
    "malformed": "The request is verified, but its body is not JSON (or a form, if the provider sends forms); or a "
    "signed header occurs twice; or the request has two lengths, or trailers.",
    "unknown_source": "The address has no source.",
    "unknown_tenant": "The source has tenants, and the address names none of them. See [tenants](tenants.md).",
    "tenant_missing": "The source has tenants and no secrets of its own, and the address names no tenant.",
    "rate_limited": "A tenant delivers faster than `tenants.rate` allows. `Retry-After` says when to try again.",
    "head_too_large": "The request line and headers exceed 64 kB in total, or there are more than 200 headers.",
    "too_large": "The body exceeds `max_body`, as declared or as counted while it streams.",
    "timeout": "The body was not complete within `receive_timeout`.",
    "unsupported_media_type": "The source does not accept this content type or content encoding.",
    "method_not_allowed": "The method is neither POST nor one of the provider's handshakes.",
    "foreign_origin": 'A web page sent it (`Origin` or `Sec-Fetch-Site`), and the source has `verify = "none"`.',
    "handler_failed": "The handler of an inline source failed. The next delivery is the next attempt.",
    "unavailable": "The database does not answer, the disk is full, too many events are waiting, or the commit took "
    "too long. For an inline source also: its handler is running, or the source is paused. For a tenant also: its "
    "secrets could not be looked up. `Retry-After` says when to try again.",
}


def errors_table() -> str:
    rows = [(f"`{code}`", str(status), WHEN[code]) for code, (status, _) in ERRORS.items()]
    return table(("code", "status", "meaning"), rows)


def log_table() -> str:
    return table(("message", "level", "meaning"), [(f"`{name}`", *about) for name, about in LOG_EVENTS.items()])


# -- the command line -----------------------------------------------------------------------------------------------


def commands() -> str:
    parts = ["```text", _help(oncehook, "oncehook"), "```"]
    for name in COMMANDS:
        command = importlib.import_module(f"oncehook.cli.{name}").command
        parts += [f"\n## oncehook {name}\n", "```text", _help(command, f"oncehook {name}"), "```"]
        for inner in command.commands.values() if isinstance(command, click.Group) else ():
            title = f"oncehook {name} {inner.name}"
            parts += [f"\n### {title}\n", "```text", _help(inner, title), "```"]
    return "\n".join(parts)


def _help(command: click.Command, name: str) -> str:
    command = copy(command)
    command._help_option = None  # click caches the help option, with the names of its first use
    context = click.Context(command, info_name=name, terminal_width=100, help_option_names=["-h", "--help"])
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


# -- the packages ---------------------------------------------------------------------------------------------------


def packages() -> str:
    """The packages in the order of the import layers, each with the first line of its docstring."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    lines = ["```text", "src/oncehook/"]
    for name in (name for layer in layers for name in re.split(r" [|:] ", layer)):
        lines += _package_lines(ROOT / "src" / "oncehook" / name, "  ")
    return "\n".join([*lines, "```"])


def _package_lines(package: Path, indent: str) -> list[str]:
    if not package.is_dir():
        return [_line(package.with_suffix(".py"), f"{indent}{package.name}.py")]
    lines = [_line(package / "__init__.py", f"{indent}{package.name}/")]
    for inner in sorted(file.parent for file in package.glob("*/__init__.py")):
        lines += _package_lines(inner, indent + "  ")
    return lines


def _line(file: Path, label: str) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return f"{label:<17} {docstring.partition(chr(10))[0]}"


def decisions() -> str:
    """The decision records: number, title, and the sentence after the title."""
    lines = []
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title, summary, *_ = page.read_text("utf-8").split("\n\n")
        lines.append(f"- [{title.removeprefix('# ')}](decisions/{page.name}): {' '.join(summary.split())}")
    return "\n".join(lines)


# -- guarantees and crash points ------------------------------------------------------------------------------------


def fsck_invariants_table() -> str:
    rows = []
    for name, invariant in INVARIANTS.items():
        checks = ", ".join(f"`{check.name}`" for check in CHECKS if name in check.invariants)
        rows.append((name, invariant.promise, checks, invariant.limit or ""))
    return table(("guarantee", "promise", "checks", "cannot be checked here"), rows)


def fsck_checks_table() -> str:
    rows = [(f"`{check.name}`", check.sentence, check.remedy) for check in CHECKS]
    return table(("check", "a violation means", "what to do"), rows)


def crash_points_table() -> str:
    rows = [(p.name, p.sentence, _where(p.postgres), _where(p.sqlite)) for p in CRASH_POINTS]
    return table(("point", "moment", "PostgreSQL", "SQLite"), rows)


def planted_bugs_table(*, known: bool) -> str:
    rows = []
    for bug in read_bugs():
        if bug.is_known is known:
            tests = ", ".join(f"`{test.partition('[')[0]}`" for test in bug.tests)
            rows.append((f"{bug.number:02} {bug.name}", f"{bug.sentence} {bug.note}".strip(), bug.breaks, tests))
    return table(("bug", "what is broken", "what it breaks", "caught by"), rows)


def fault_kinds_table() -> str:
    databases = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
    rows = [
        (
            kind.name,
            _upper_first(kind.what),
            ", ".join(databases[name] for name in kind.runs) or "no",
            "<br>".join(f"`{test.replace('::', '` `')}`" for test in kind.tests),
        )
        for kind in KINDS
    ]
    return table(("kind", "fault", "in the run", "also shown by"), rows)


def _upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def _where(where: Where) -> str:
    if isinstance(where, Statement):
        follows = "" if where.follows is None else f" of `{where.follows}`"
        return f"{where.when} the statement `{where.query}`{follows}".replace("sent the", "sent: the")
    if isinstance(where, Call):
        name = where.path.rpartition(":")[2]
        return f"half of `{name}`" if where.when == "sent" else f"{where.when} `{name}`"
    if isinstance(where, InHandler):
        return "in the handler"
    return f"none: {where}"


MUTATION_COLUMNS = {"possible mutants": "available", "tried": "mutants"}
MUTATION_COLUMNS |= {name: name for name in ("killed", "equivalent", "survived")}


def mutation_table() -> str:
    score = json.loads((ROOT / "proof" / "mutation" / "score.json").read_text("utf-8"))
    rows = [
        (name, *(str(group[key]) for key in MUTATION_COLUMNS.values()), f"{group['score']:.1%}")
        for name, group in score["groups"].items()
    ]
    return table(("group", *MUTATION_COLUMNS, "score"), rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "source-settings": source_settings_table,
    "consumer-settings": consumer_settings_table,
    "shard-settings": shard_settings_table,
    "dashboard-settings": dashboard_settings_table,
    "alert-settings": alert_settings_table,
    "rules": rules_table,
    "endpoints": endpoints_table,
    "lifecycle": lifecycle,
    "errors": errors_table,
    "logs": log_table,
    "metrics": metrics_table,
    "providers": provider_pages.providers_table,
    "provider-pages": provider_pages.entries,
    "commands": commands,
    "schema": schema.tables,
    "packages": packages,
    "decisions": decisions,
    "names": reference.names_table,
    "constructor": reference.constructor,
    "members": reference.members,
    "testing-names": reference.testing_names,
    "email-names": reference.email_names,
    "scale-figures": capacity.figures_table,
    "scale-plan": capacity.plan_table,
    "scale-cost": capacity.cost_table,
    "fsck-invariants": fsck_invariants_table,
    "fsck-checks": fsck_checks_table,
    "crash-points": crash_points_table,
    "planted-known": partial(planted_bugs_table, known=True),
    "planted-own": partial(planted_bugs_table, known=False),
    "mutation": mutation_table,
    "fault-kinds": fault_kinds_table,
}


if __name__ == "__main__":
    main()
