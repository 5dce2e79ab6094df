"""The generated parts of the docs: `python -m docs.generate` writes them, tests/docs/test_docs.py holds them current.

A page is written by hand. What stands between `<!-- generated: NAME -->` and `<!-- end -->` is made here, out of the
tables in the source that it describes.
"""

import ast
import importlib
import inspect
import json
import re
import sqlite3
import tomllib
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from docs import migrations, reference
from oncehook.alerts import settings as alerts
from oncehook.alerts.rules import RULES
from oncehook.cli import COMMANDS, oncehook
from oncehook.config import settings
from oncehook.model import values
from oncehook.model.states import TRANSITIONS, State
from oncehook.observability.log_events import LOG_EVENTS
from oncehook.observability.metrics import METRICS
from oncehook.providers import definition as providers
from oncehook.providers.definition import Expression, Provider
from oncehook.providers.handshake import kind_of
from oncehook.receiver.ack import ERRORS
from oncehook.store import queries
from oncehook.web import settings as dashboard
from oncehook.web.api import ENDPOINTS

ROOT = Path(__file__).parent.parent
COLUMNS = ROOT / "src" / "oncehook" / "store" / "sql" / "columns.json"
_BLOCK = re.compile(r"(<!-- generated: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    for page in pages():
        text = page.read_text("utf-8")
        made = fill(text)
        if made != text:
            page.write_text(made, "utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
    if COLUMNS.read_text("utf-8") != (made := columns()):
        COLUMNS.write_text(made, "utf-8")
        print(f"wrote {COLUMNS.relative_to(ROOT)}")
    if migrations.record():
        print(f"wrote {migrations.RECORDED.relative_to(ROOT)}")


def pages() -> list[Path]:
    """Every page that a reader sees, sorted."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/*/README.md")])


def fill(text: str) -> str:
    """The page with its generated blocks made anew."""
    return _BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]]().strip()}\n\n{block[3]}", text)


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# -- settings -------------------------------------------------------------------------------------------------------


def settings_table() -> str:
    rows = [
        (f"`{f.name}`", f"`ONCEHOOK_{f.name.upper()}`", _default(f.default, f.metadata["parse"]), f.metadata["help"])
        for f in fields(settings.Settings)
    ]
    return table(("key", "variable", "default", "meaning"), rows)


def source_settings_table() -> str:
    rows = [
        (f"`{f.name}`", _default(f.default, f.metadata["parse"]), f.metadata["help"])
        for f in fields(settings.SourceSettings)
    ]
    return table(("key", "default", "meaning"), rows)


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
    """The rules as people meet them, for a source `stripe`."""
    defaults = {f.name: f for f in fields(alerts.Thresholds)}
    facts = {"source": "stripe", "value": "9", "threshold": "5", "provider": "Stripe", "horizon": "3d"}
    rows = []
    for rule in RULES:
        threshold = defaults[rule.setting]
        default = _default(threshold.default, threshold.metadata["parse"]) or "off"
        units = {"value": "2d 6h", "threshold": "6h"} if rule.unit == "seconds" else {}
        told = f"{rule.sentence.format_map(facts | units)} {rule.remedy.format_map(facts)}"
        rows.append((f"`{rule.name}`", f"`{rule.setting}`", default, told))
    return table(("rule", "threshold", "default", "what people are told"), rows)


def endpoints_table() -> str:
    rows = [(f"`{e.method} {e.path}`", f"`{e.scope}`", e.summary) for e in ENDPOINTS]
    return table(("endpoint", "scope", "what it does"), rows)


def _default(value: Any, parse: Callable[[Any], Any]) -> str:
    """A default as one would write it in the file."""
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
    lines = ["```mermaid", "stateDiagram-v2"]
    for before, nexts in TRANSITIONS.items():
        lines += [f"    {before or '[*]'} --> {after}" for after in State if after in nexts]
    return "\n".join([*lines, "```"])


# -- answers and log lines ------------------------------------------------------------------------------------------

WHEN = {
    "bad_signature": "No signature in the request is by a secret of the source, or its timestamp is not a number.",
    "stale_timestamp": "The signature is right, and its timestamp is outside the window, either way.",
    "malformed": "Verified, but not JSON, nor a form where the provider sends forms; a signed header came twice; "
    "two lengths, or trailers.",
    "unknown_source": "The address names no source.",
    "head_too_large": "The request line and headers are larger than 64 kB together, or more than 200 headers.",
    "too_large": "The body is larger than `max_body`, as declared or as counted while it streams.",
    "timeout": "The body was not complete within `receive_timeout`.",
    "unsupported_media_type": "A content type or content encoding that no provider here uses.",
    "method_not_allowed": "Any method but POST, and but those of the provider's handshakes.",
    "foreign_origin": 'A web page sent it (`Origin` or `Sec-Fetch-Site`), and the source has `verify = "none"`.',
    "handler_failed": "The handler of an inline source failed; the next delivery is the next attempt.",
    "unavailable": "The database does not answer, the disk is full, the intake is full, or the commit took too long; "
    "of an inline source also: its handler is running, or it is paused. "
    "`Retry-After` says when to try again.",
}


def errors_table() -> str:
    rows = [(f"`{code}`", str(status), WHEN[code]) for code, (status, _) in ERRORS.items()]
    return table(("code", "status", "when"), rows)


def lines_table() -> str:
    return table(("line", "level", "when"), [(f"`{line}`", *about) for line, about in LOG_EVENTS.items()])


# -- providers ------------------------------------------------------------------------------------------------------


def providers_table() -> str:
    found = [providers.built_in(name) for name in providers.built_in_names()]
    rows = [(f"[`{p.name}`](#{p.name})", p.title, _signed(p), p.retries.horizon or "?", p.support) for p in found]
    return table(("provider", "sender", "signed by", "retries for", "support"), rows)


def providers_pages() -> str:
    return "\n\n".join(_provider(providers.built_in(name)) for name in providers.built_in_names())


UNCONFIRMED = "**Not confirmed** from the provider's own text: check it before you rely on it."

STAMPS = {
    "attempt": "of each attempt: within {} of now, either way",
    "event": "of the event: no older than the retry horizon and {0}, no more than {0} ahead",
    "unknown": "of the event or the attempt, which is not documented: no older than the retry horizon and {0}, "
    "no more than {0} ahead",
}


def _provider(provider: Provider) -> str:
    stamp, facts, retries = provider.timestamp, provider.event, provider.retries
    rows = {
        "Secret": provider.secret,
        "Needs": ", ".join(f"`{option}`" for option in provider.options),
        "Signed by": _signed(provider),
        "Timestamp": STAMPS[stamp.stamps].format(stamp.tolerance) if stamp else "none",
        "Body": " or ".join(provider.content) + (f", up to {provider.max_body}" if provider.max_body else ""),
        "Batch": _batch(facts.split),
        "Id": _expression(facts.id),
        "Type": _expression(facts.type),
        "Object": _expression(facts.object),
        "Occurred at": _expression(facts.occurred_at),
        "Delivery id": _expression(facts.delivery_id),
        "Handshake": "; ".join(f"`{one.method}`: {kind_of(one.kind).summary}" for one in provider.handshakes),
        "Answered with": _answered(provider),
        "Retries": retries.schedule,
        "Answer within": retries.time_limit or "",
        "Stops on": ", ".join(map(str, retries.stop_codes)),
        "Documentation": f"<{provider.docs}> (this definition is of {provider.checked})" if provider.docs else "",
    }
    about = table(("", provider.title or provider.name), [(name, text) for name, text in rows.items() if text])
    notes = "\n".join(f"- {note}" for note in provider.notes)
    doubt = "" if provider.support == "confirmed" else f"{UNCONFIRMED}\n\n"
    return f"### {provider.name}\n\n{doubt}{about}\n\n{notes}".strip()


def _answered(provider: Provider) -> str:
    answer = provider.answer
    if answer.status is None and answer.body is None:
        return ""
    body = "" if answer.body is None else f", `{answer.body}`" if answer.body else ", nothing"
    return f"{answer.status or 200}{body}"


def _batch(split: str | None) -> str:
    if split is None:
        return ""
    return f"{'the body is an array' if split == '*' else f'an array at `{split}`'}: one receipt an element"


def _signed(provider: Provider) -> str:
    return " or ".join(dict.fromkeys(f"`{signature.algorithm}`" for signature in provider.signatures))


def _expression(expression: Expression | None) -> str:
    if expression is None:
        return ""
    choices = [expression] if isinstance(expression, str) else expression
    return ", else ".join(f"`{choice}`" for choice in choices)


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
    command._help_option = None  # click keeps the one that was asked for first, with the names it had then
    context = click.Context(command, info_name=name, terminal_width=100, help_option_names=["-h", "--help"])
    return "\n".join(line.rstrip() for line in command.get_help(context).splitlines())


# -- the schema -----------------------------------------------------------------------------------------------------

MEANING = {
    "webhook_receipts": {
        "id": "The receipt: grows, with gaps.",
        "source": "The source that it was delivered to.",
        "provider": "The provider of that source.",
        "event_id": "The sender's id; `sha256:…` where it has none that can be used, or one longer than 255 bytes.",
        "type": "The sender's type.",
        "object_id": "What the event is about, where the provider's definition says where that is.",
        "delivery_id": "The sender's id of the delivery or attempt, where it has one beside the event's.",
        "occurred_at": "When it happened, by the sender's clock.",
        "received_at": "When it was committed, by the database's clock.",
        "status": "Its state, see [lifecycle](lifecycle.md).",
        "attempts": "How often a handler was tried, since it arrived or was replayed; counted when it is leased.",
        "next_attempt_at": "When the next attempt is due; after a replay, when that was; of an inline receipt, when "
        "its provider stops retrying.",
        "processed_at": "When its handler's work was committed.",
        "failed_at": "When it became a dead letter; empty in every other state.",
        "replayed_at": "When it was last replayed: its age counts from there.",
        "unhandled_at": "Since when no process has a handler for it; it is not leased until one has.",
        "last_error": "What the last attempt failed with, or why it is `failed`.",
        "correlation_id": "What the source's `correlation` names, else the `traceparent` header. Empty: the receipt.",
        "replays": "How often it was replayed.",
        "fingerprint": "SHA-256 by which the same id with another body is told.",
        "lease": "Counts the leases of this receipt: a write by an older one matches nothing.",
        "lease_until": "Until when a worker holds it.",
        "leased_at": "When it was last leased.",
        "worker": "Who leased it last: host and process.",
        "crashes": "How many leases in a row ran out; such a receipt is leased alone.",
        "is_inline": "Whether the provider's own retries drive it.",
        "serial_key": "What the source's `serial_by` names, by which events are handled in [order](order.md).",
        "outcome": "What came of the last attempt, such as `processed` or `retrying`.",
        "handler": "The handler of the last attempt.",
        "started_at": "When the handler of the last attempt was called.",
        "version": "The `version` that was set for its code.",
    },
    "webhook_attempts": {
        "id": "Grows with the attempts of a receipt; not the same after a replay.",
        "receipt_id": "The receipt.",
        "number": "Which attempt it was.",
        "started_at": "When the handler was called.",
        "ended_at": "When it had ended.",
        "outcome": "`processed`, `retrying`, `failed` or `crashed`.",
        "error": "The error's kind and message.",
        "traceback": "Where the error went through; never the values.",
        "handler": "The function.",
        "version": "The `version` that was set for its code.",
        "worker": "Who ran it: host and process.",
    },
    "webhook_live_handlers": {
        "worker": "The process: host, process id and a random part.",
        "source": "A source that it handles.",
        "pattern": "The types that it handles.",
        "matcher": "The pattern as the database's `LIKE` or `GLOB` takes it.",
        "is_projection": "Whether it only keeps email tables: it leaves a type to a process with a handler.",
        "seen_at": "When the process was last seen; after a minute it is not live any more.",
    },
    "webhook_effects": {
        "id": "The effect: grows, with gaps.",
        "scope": "Where its key is unique: the source, unless given.",
        "key": "The handler's key; `sha256:…` if it was longer than 255 bytes.",
        "kind": "`function`, `topic`, or `once` for a handler's `once_per`, which has nothing to perform.",
        "target": "The function's name, or the topic.",
        "args": "A JSON object of its arguments; empty once they were pruned or erased.",
        "source": "The source of the event that asked first.",
        "receipt_id": "The receipt of that event.",
        "status": "`waiting`, `performing`, `retrying`, `done` or `failed`, see [effects](effects.md).",
        "attempts": "How often it was tried, since it was recorded or replayed; counted when it is leased.",
        "created_at": "When it was recorded, by the database's clock.",
        "next_attempt_at": "When the next attempt is due.",
        "done_at": "When its target had taken it.",
        "last_error": "What the last attempt failed with.",
        "lease": "Counts its leases: a mark by an older one matches nothing.",
        "lease_until": "Until when a relay holds it.",
        "leased_at": "When it was last leased.",
        "worker": "Who leased it last: host and process.",
        "crashes": "How many leases in a row ran out; such an effect is leased alone.",
        "replays": "How often it was replayed.",
    },
    "webhook_entities": {
        "scope": "The source, unless given.",
        "kind": "What it is, such as `subscription`.",
        "id": "Which one.",
        "state": "The newest state, as the handler gave it.",
        "at": "The time by which that is the newest.",
        "version": "The version, likewise.",
        "is_terminal": "Whether it has ended: only a later end replaces it.",
        "event_id": "The event that told of it.",
        "receipt_id": "Its receipt.",
        "updated_at": "When that was committed.",
    },
    "webhook_noops": {
        "id": "Grows.",
        "at": "When.",
        "receipt_id": "The receipt whose event asked.",
        "source": "Its source.",
        "reason": "`effect`: the key was recorded before; `stale`: newer is known of the entity.",
        "scope": "Of the effect or the entity.",
        "key": "The effect's key, or `kind:id` of the entity.",
    },
    "webhook_audit": {
        "id": "Grows.",
        "at": "When.",
        "actor": "Who: a user of the machine, or as given; `user:NAME` or `token:NAME` from the dashboard.",
        "action": "`replay`, `replay effects` or `forget`; of the dashboard `replay_started`, `replay_ended`, "
        "`rehearse`, `sign_in`; of email `suppress` or `allow`.",
        "detail": "What, as JSON.",
    },
    "webhook_email_events": {
        "source": "The source that told it.",
        "key": "What makes it one fact, however often it is told: the provider's id, or composed of its facts.",
        "provider": "The provider of that source.",
        "type": "What happened, in the words of [email](email.md#event-types).",
        "bounce": "`hard` or `soft`, of a bounce where the provider says so.",
        "message_id": "The message, by the id that the provider gave it; empty where it is about none.",
        "recipient": "Whose; empty where the provider does not say which.",
        "domain": "The recipient's domain.",
        "occurred_at": "When it happened, by the provider's clock.",
        "reason": "What the recipient's server or the provider said.",
        "tags": "A JSON array of the message's tags or categories.",
        "metadata": "A JSON object of what you gave along with the message.",
        "receipt_id": "The receipt that told it first; it may be pruned by now.",
    },
    "webhook_email_status": {
        "message_id": "The message.",
        "recipient": "The recipient; empty where the provider does not say which.",
        "source": "The source.",
        "status": "The delivery state; empty while only opens or clicks are known.",
        "bounce": "`hard` or `soft`.",
        "reason": "What that fact said.",
        "occurred_at": "When it was so, by the provider's clock.",
        "place": "Where that fact stands in the order: terminal, time, rank. The greatest counts.",
        "event_key": "The fact that says so.",
        "delivered_at": "The first delivery.",
        "opened_at": "The first open.",
        "clicked_at": "The first click.",
        "last_at": "The newest fact of any type.",
    },
    "webhook_suppressions": {
        "address": "The address, its domain in lower case and as ASCII; a hash once it was forgotten.",
        "suppressed_at": "Since when, by the provider's clock. Empty: it may be sent to.",
        "reason": "`hard_bounce`, `complaint`, `unsubscribe`, `soft_bounces`, `manual`, or as imported.",
        "source": "The source of the fact that says so; empty if a person does.",
        "event_key": "The fact that says so; `forgotten` after `oncehook forget`.",
        "message_id": "The message of that fact.",
        "added_at": "When a person added it, or as imported.",
        "added_reason": "With which reason.",
        "removed_at": "When a person last lifted it: what happened until then does not count.",
        "note": "The note of whoever changed it last.",
        "actor": "Who that was.",
    },
    "webhook_payloads": {
        "receipt_id": "The receipt.",
        "day": "The UTC day of `received_at`, by which the table is partitioned.",
        "body": "The exact bytes as received; of a batch, those of this event.",
        "headers": "A JSON object of the headers, without credentials and signatures.",
    },
    "webhook_keys": {
        "source": "The source.",
        "key": "A fact of the event besides its id, which the provider's definition lists under `unique`.",
        "receipt_id": "The receipt that has it.",
    },
    "webhook_deliveries": {
        "id": "Grows.",
        "receipt_id": "The receipt that it is a duplicate of.",
        "delivery_id": "The sender's id of this delivery, where it has one.",
        "received_at": "When it was noted, a moment after it was acked.",
        "fingerprint": "As on the receipt, of this delivery's body.",
        "same_body": "Whether the body is the one that the receipt has.",
    },
    "webhook_rejections": {
        "id": "Grows.",
        "source": "The source that it was sent to.",
        "rejected_at": "When it was noted, a moment after it was answered.",
        "reason": "What the sender was told.",
        "detail": "What was wrong, for the operator.",
        "method": "Of the request.",
        "query": "Of the request; only the names, unless the provider signs the address.",
        "headers": "A JSON object of the headers, without credentials.",
        "body": "The first 64 kB.",
        "size": "The length of the whole body.",
    },
    "webhook_secrets": {
        "source": "The source.",
        "secret": "A short mark of the secret.",
        "verified": "How many deliveries it has verified.",
        "first_used_at": "When it first did.",
        "last_used_at": "When it last did.",
    },
    "webhook_pauses": {
        "source": "A source whose events are accepted and not worked on.",
        "paused_at": "Since when.",
        "actor": "Who paused it.",
        "reason": "Why, if that was said.",
        "ends_at": "When it is resumed by itself; null: never.",
    },
    "webhook_refusals": {
        "source": "The source, or `unknown`.",
        "minute_at": "The minute in which it was written, at most ten seconds after it was counted.",
        "reason": "What the senders were told.",
        "refused": "How many deliveries, in all processes.",
    },
    "webhook_acks": {
        "source": "The source.",
        "minute_at": "The minute in which it was written, at most ten seconds later. Kept for some hours.",
        "bucket": "How long the ack took: bucket `n` is up to 0.1 ms × 1.2ⁿ.",
        "acked": "How many deliveries, in all processes.",
    },
    "webhook_incidents": {
        "id": "Grows.",
        "key": "Random; what targets are told is numbered by it.",
        "rule": "What is wrong, see [alerts](alerts.md#the-rules).",
        "source": "With which source.",
        "opened_at": "Since when.",
        "value": "What was measured last while it was above the threshold.",
        "worst": "The highest value that was measured.",
        "threshold": "The limit: it is open while the value is above.",
        "summary": "The sentence for people, as it was at first.",
        "below_at": "Since when it is below the threshold again.",
        "recovered_at": "When it was over; empty while it is open.",
    },
    "webhook_alerts": {
        "id": "Grows.",
        "incident_id": "The incident.",
        "target": "Who is told: the name in the configuration.",
        "word": "`opened`, `reminder` or `recovered`.",
        "number": "Which reminder.",
        "status": "`waiting`, `sending`, `told`, or `failed` when it was given up.",
        "attempts": "How often it was tried; counted when it is leased.",
        "next_attempt_at": "When the next attempt is due; while it is being sent, when its lease runs out.",
        "told_at": "When the target had taken it.",
        "last_error": "What the last attempt failed with.",
        "lease": "Counts its leases: a mark by an older one matches nothing.",
        "worker": "Who leased it last: host and process.",
    },
    "webhook_turns": {
        "name": "What one process does for all.",
        "number": "Counts the turns: what an older one would write is refused.",
        "taken_at": "When the last turn was taken.",
    },
    "webhook_dlq": {
        "receipt": "The receipt.",
        "source": "",
        "event_id": "",
        "type": "",
        "object_id": "",
        "attempts": "",
        "last_error": "",
        "received_at": "As on the receipt.",
        "failed_at": "When it became a dead letter.",
        "payload": "The body.",
    },
}


def columns() -> str:
    """The same for `oncehook schema --json`."""
    sqlite, postgres = _sqlite_columns(), _postgres_columns()
    found = {
        name: {
            column: {
                "postgres": postgres[name].get(column, ""),
                "sqlite": sqlite[name].get(column, "").lower(),
                "meaning": meaning[column],
            }
            for column in dict.fromkeys([*postgres[name], *sqlite[name]])
        }
        for name, meaning in MEANING.items()
    }
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def schema() -> str:
    sqlite, postgres = _sqlite_columns(), _postgres_columns()
    parts = []
    for name, meaning in MEANING.items():
        columns = list(dict.fromkeys([*postgres[name], *sqlite[name]]))
        rows = [(f"`{c}`", postgres[name].get(c, ""), sqlite[name].get(c, "").lower(), meaning[c]) for c in columns]
        parts.append(f"### {name}\n\n" + table(("column", "PostgreSQL", "SQLite", "meaning"), rows))
    return "\n\n".join(parts)


def _sqlite_columns() -> dict[str, dict[str, str]]:
    """The columns as SQLite itself tells them, once the migrations have run."""
    connection = sqlite3.connect(":memory:")
    for _, _, sql in queries.migrations("sqlite"):
        connection.executescript(sql)
    found = {}
    for name in MEANING:
        found[name] = {row[1]: row[2] for row in connection.execute(f"PRAGMA table_info({name})")}
    connection.close()
    return found


def _postgres_columns() -> dict[str, dict[str, str]]:
    """The columns as the migrations write them, a domain as the type that it is made of."""
    written = "\n".join(sql for _, _, sql in queries.migrations("postgres"))
    domains = dict(re.findall(r"CREATE DOMAIN (\w+) AS (\w+)", written))
    found: dict[str, dict[str, str]] = {}
    for name, body in re.findall(r"CREATE TABLE (\w+) \(\n(.*?)\n\)", written, re.DOTALL):
        found[name] = dict(re.findall(r"^    ([a-z_]+) +([a-z_]+)", body, re.MULTILINE))
    for name, body in re.findall(r"ALTER TABLE (\w+)\s+(.*?);\n", written, re.DOTALL):
        found[name] |= dict(re.findall(r"ADD COLUMN ([a-z_]+) +([a-z_]+)", body))
    for name, body in re.findall(r"CREATE VIEW (\w+) AS\n(.*?);\n", written, re.DOTALL):
        found[name] = _view_columns(name, body, found)
    return {name: {c: domains.get(t, t) for c, t in columns.items()} for name, columns in found.items()}


def _view_columns(view: str, body: str, tables: dict[str, dict[str, str]]) -> dict[str, str]:
    """The columns of a view, which have the types of the tables that it reads, the first of them first."""
    types: dict[str, str] = {}
    for table in reversed(re.findall(r"(?:FROM|JOIN) (\w+)", body)):
        types |= tables[table]
    types |= {alias: types[column] for column, alias in re.findall(r"\.(\w+) AS (\w+)", body)}
    return {column: types[column] for column in MEANING[view]}


# -- the packages ---------------------------------------------------------------------------------------------------


def packages() -> str:
    """The tree of packages in the order of the import layers, each with the first line of its docstring."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    lines = ["```text", "src/oncehook/"]
    for name in (name for layer in layers for name in re.split(r" [|:] ", layer)):
        lines += _drawn(ROOT / "src" / "oncehook" / name, "  ")
    return "\n".join([*lines, "```"])


def _drawn(package: Path, indent: str) -> list[str]:
    if not package.is_dir():
        return [_line(package.with_suffix(".py"), f"{indent}{package.name}.py")]
    lines = [_line(package / "__init__.py", f"{indent}{package.name}/")]
    for inner in sorted(file.parent for file in package.glob("*/__init__.py")):
        lines += _drawn(inner, indent + "  ")
    return lines


def _line(file: Path, drawn: str) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return f"{drawn:<17} {docstring.partition(chr(10))[0]}"


def decisions() -> str:
    """A list of the decision records: number and title, with the sentence that follows the title."""
    lines = []
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title, summary, *_ = page.read_text("utf-8").split("\n\n")
        lines.append(f"- [{title.removeprefix('# ')}](decisions/{page.name}): {' '.join(summary.split())}")
    return "\n".join(lines)


BLOCKS: dict[str, Callable[[], str]] = {
    "settings": settings_table,
    "source-settings": source_settings_table,
    "dashboard-settings": dashboard_settings_table,
    "alert-settings": alert_settings_table,
    "rules": rules_table,
    "endpoints": endpoints_table,
    "lifecycle": lifecycle,
    "errors": errors_table,
    "lines": lines_table,
    "metrics": metrics_table,
    "providers": providers_table,
    "provider-pages": providers_pages,
    "commands": commands,
    "schema": schema,
    "packages": packages,
    "decisions": decisions,
    "names": reference.names_table,
    "constructor": reference.constructor,
    "members": reference.members,
    "testing-names": reference.testing_names,
    "email-names": reference.email_names,
}


if __name__ == "__main__":
    main()
