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
        "id": "The receipt. Ids ascend, with gaps.",
        "source": "The source that received the event.",
        "provider": "The provider of that source.",
        "event_id": "The sender's id; `sha256:…` if the sender has no usable id or one longer than 255 bytes.",
        "type": "The sender's type.",
        "object_id": "The object that the event is about, if the provider's definition says where to find it.",
        "delivery_id": "The sender's id of the delivery, if it differs from the event's.",
        "occurred_at": "When the event happened, by the sender's clock.",
        "received_at": "When the receipt was committed, by the database's clock.",
        "status": "The state, see [lifecycle](lifecycle.md).",
        "attempts": "The attempts since the arrival or the last replay. Counted at the lease.",
        "next_attempt_at": "When the next attempt is due. After a replay: the time of the replay. For an inline "
        "receipt: when its provider stops retrying.",
        "processed_at": "When the handler's transaction committed.",
        "failed_at": "When it became a dead letter; empty in every other state.",
        "replayed_at": "The time of the last replay. The age of the event counts from it.",
        "unhandled_at": "Since when no process has a handler for it. It is not leased until one has.",
        "last_error": "The error of the last attempt, or the reason for `failed`.",
        "correlation_id": "The value that the source's `correlation` selects, or else the `traceparent` header. If "
        "empty, the receipt's id is used.",
        "replays": "The number of replays.",
        "fingerprint": "A SHA-256 hash that shows whether a duplicate has another body.",
        "lease": "The fencing counter: the number of leases. A write with an older counter changes nothing.",
        "lease_until": "When the lease expires.",
        "leased_at": "The time of the last lease.",
        "worker": "The worker that leased it last: host and process.",
        "crashes": "The consecutive leases that expired. Above 0, the receipt is quarantined.",
        "is_inline": "Whether the provider's retries drive its attempts.",
        "serial_key": "The value that the source's `serial_by` selects. Events with the same key are handled in "
        "[order](order.md).",
        "outcome": "The outcome of the last attempt, such as `processed` or `retrying`.",
        "handler": "The handler of the last attempt.",
        "started_at": "When the handler of the last attempt started.",
        "version": "The configured `version` of the code that handled it.",
    },
    "webhook_attempts": {
        "id": "Ascends with the attempts of a receipt. Changes after a replay.",
        "receipt_id": "The receipt.",
        "number": "The number of the attempt, from 1.",
        "started_at": "When the handler started.",
        "ended_at": "When the handler ended.",
        "outcome": "`processed`, `retrying`, `failed` or `crashed`.",
        "error": "The class and message of the error.",
        "traceback": "The traceback, without values.",
        "handler": "The handler function.",
        "version": "The configured `version` of the code.",
        "worker": "The worker: host and process.",
    },
    "webhook_live_handlers": {
        "worker": "The process: host, process id and a random part.",
        "source": "A source that the process handles.",
        "pattern": "The types that the process handles.",
        "matcher": "The pattern in the syntax of the database's `LIKE` or `GLOB`.",
        "is_projection": "Whether the process only updates the email tables for these types. It leaves a type to a "
        "process with a handler.",
        "seen_at": "When the process last renewed its registration. It is live for one minute.",
    },
    "webhook_effects": {
        "id": "The effect. Ids ascend, with gaps.",
        "scope": "The scope in which its key is unique: the source, unless the handler set another.",
        "key": "The handler's idempotency key; `sha256:…` if it is longer than 255 bytes.",
        "kind": "`function`, `topic`, or `once` for a handler's `once_per`, for which nothing is run.",
        "target": "The function's name, or the topic.",
        "args": "The arguments as a JSON object; empty after they were pruned or erased.",
        "source": "The source of the event that requested it first.",
        "receipt_id": "The receipt of that event.",
        "status": "`waiting`, `performing`, `retrying`, `done` or `failed`, see [effects](effects.md).",
        "attempts": "The attempts since it was recorded or replayed. Counted at the lease.",
        "created_at": "When it was recorded, by the database's clock.",
        "next_attempt_at": "When the next attempt is due.",
        "done_at": "When the call succeeded.",
        "last_error": "The error of the last attempt.",
        "lease": "The fencing counter: the number of leases. A write with an older counter changes nothing.",
        "lease_until": "When the lease expires.",
        "leased_at": "The time of the last lease.",
        "worker": "The relay that leased it last: host and process.",
        "crashes": "The consecutive leases that expired. Above 0, the effect is quarantined.",
        "replays": "The number of replays.",
    },
    "webhook_entities": {
        "scope": "The source, unless the handler set another scope.",
        "kind": "The kind of the entity, such as `subscription`.",
        "id": "The entity's id.",
        "state": "The newest state, as the handler set it.",
        "at": "The time by which this state is the newest.",
        "version": "The version by which this state is the newest.",
        "is_terminal": "Whether the state is terminal. Only a newer terminal state replaces it.",
        "event_id": "The event with this state.",
        "receipt_id": "The receipt of that event.",
        "updated_at": "When the state was committed.",
    },
    "webhook_noops": {
        "id": "Ascends.",
        "at": "When the request was recorded.",
        "receipt_id": "The receipt whose handler made the request.",
        "source": "The source of that receipt.",
        "reason": "`effect`: the key existed already; `stale`: a newer state of the entity is known.",
        "scope": "The scope of the effect or entity.",
        "key": "The effect's key, or `kind:id` of the entity.",
    },
    "webhook_audit": {
        "id": "Ascends.",
        "at": "When the action was recorded.",
        "actor": "A user of the machine, or the name that was passed; `user:NAME` or `token:NAME` for the dashboard.",
        "action": "`replay`, `replay effects` or `forget`; of the dashboard `replay_started`, `replay_ended`, "
        "`rehearse`, `sign_in`; of email `suppress` or `allow`.",
        "detail": "Details of the action, as JSON.",
    },
    "webhook_email_events": {
        "source": "The source that reported the event.",
        "key": "Identifies the event however often it is reported: the provider's id, or composed from the event's "
        "fields.",
        "provider": "The provider of that source.",
        "type": "The event type, see [email](email.md#event-types).",
        "bounce": "`hard` or `soft`, for a bounce whose kind the provider reports.",
        "message_id": "The provider's id of the message; empty for an event without a message.",
        "recipient": "The recipient; empty if the provider does not report it.",
        "domain": "The recipient's domain.",
        "occurred_at": "When the event happened, by the provider's clock.",
        "reason": "The reason that the recipient's server or the provider reported.",
        "tags": "A JSON array of the message's tags or categories.",
        "metadata": "A JSON object of the metadata that you sent with the message.",
        "receipt_id": "The receipt that reported it first. It may have been pruned.",
    },
    "webhook_email_status": {
        "message_id": "The message.",
        "recipient": "The recipient; empty if the provider does not report it.",
        "source": "The source.",
        "status": "The delivery state; empty while only opens or clicks are known.",
        "bounce": "`hard` or `soft`.",
        "reason": "The reason that this event reported.",
        "occurred_at": "When the status was reached, by the provider's clock.",
        "place": "The position of this event in the order: terminal, time, rank. The greatest determines the status.",
        "event_key": "The event that determines the status.",
        "delivered_at": "The time of the first delivery.",
        "opened_at": "The time of the first open.",
        "clicked_at": "The time of the first click.",
        "last_at": "The time of the newest event of any type.",
    },
    "webhook_suppressions": {
        "address": "The address, with its domain in lower case and as ASCII; a hash after `oncehook forget`.",
        "suppressed_at": "Since when the address is suppressed, by the provider's clock. Empty: it is not suppressed.",
        "reason": "`hard_bounce`, `complaint`, `unsubscribe`, `soft_bounces`, `manual`, or as imported.",
        "source": "The source of the event that suppressed it; empty if a person did.",
        "event_key": "The event that suppressed it; `forgotten` after `oncehook forget`.",
        "message_id": "The message of that event.",
        "added_at": "When a person added the suppression, or the imported time.",
        "added_reason": "The reason for adding it.",
        "removed_at": "When a person last removed the suppression. Earlier events do not suppress the address again.",
        "note": "The note of the last change by a person.",
        "actor": "The person who made that change.",
    },
    "webhook_payloads": {
        "receipt_id": "The receipt.",
        "day": "The UTC day of `received_at`, by which the table is partitioned.",
        "body": "The exact bytes as received; for a batch, those of this event.",
        "headers": "The headers as a JSON object, without credentials and signatures.",
    },
    "webhook_keys": {
        "source": "The source.",
        "key": "A unique value of the event besides its id, from `unique` in the provider's definition.",
        "receipt_id": "The receipt with this value.",
    },
    "webhook_deliveries": {
        "id": "Ascends.",
        "receipt_id": "The receipt of the event.",
        "delivery_id": "The sender's id of this delivery, if any.",
        "received_at": "When the duplicate was recorded, shortly after its ack.",
        "fingerprint": "The fingerprint of this delivery's body.",
        "same_body": "Whether the body is the same as the receipt's.",
    },
    "webhook_rejections": {
        "id": "Ascends.",
        "source": "The source that rejected the request.",
        "rejected_at": "When the sample was recorded, shortly after the response.",
        "reason": "The error code in the response.",
        "detail": "The cause, for the operator.",
        "method": "The HTTP method.",
        "query": "The query string; only parameter names, unless the provider signs the URL.",
        "headers": "The headers as a JSON object, without credentials.",
        "body": "The first 64 kB of the body.",
        "size": "The length of the whole body.",
    },
    "webhook_secrets": {
        "source": "The source.",
        "secret": "A short digest of the secret.",
        "verified": "The number of deliveries that the secret verified.",
        "first_used_at": "When it first verified a delivery.",
        "last_used_at": "When it last verified a delivery.",
    },
    "webhook_pauses": {
        "source": "A source whose events are accepted but not processed.",
        "paused_at": "When it was paused.",
        "actor": "Who paused it.",
        "reason": "The reason, if any.",
        "ends_at": "When the pause ends; null: only when a person resumes the source.",
    },
    "webhook_refusals": {
        "source": "The source, or `unknown`.",
        "minute_at": "The minute in which the count was written, at most ten seconds after the rejections.",
        "reason": "The error code in the responses.",
        "refused": "The number of rejected deliveries, over all processes.",
    },
    "webhook_acks": {
        "source": "The source.",
        "minute_at": "The minute in which the count was written, at most ten seconds after the acks. Kept for some "
        "hours.",
        "bucket": "The latency: bucket `n` is up to 0.1 ms × 1.2ⁿ.",
        "acked": "The number of acked deliveries, over all processes.",
    },
    "webhook_incidents": {
        "id": "Ascends.",
        "key": "A random key, from which the ids of notifications are made.",
        "rule": "The rule that fired, see [alerts](alerts.md#the-rules).",
        "source": "The source for which the rule fired.",
        "opened_at": "When the incident was opened.",
        "value": "The last measured value above the threshold.",
        "worst": "The highest measured value.",
        "threshold": "The threshold of the rule.",
        "summary": "The sentence for people, from the opening.",
        "below_at": "Since when the value is no longer above the threshold.",
        "recovered_at": "When the incident recovered; empty while it is open.",
    },
    "webhook_alerts": {
        "id": "Ascends.",
        "incident_id": "The incident.",
        "target": "The alert target: its name in the configuration.",
        "word": "The notification: `opened`, `reminder` or `recovered`.",
        "number": "The number of the reminder.",
        "status": "`waiting`, `sending`, `told` (sent), or `failed` after the last attempt.",
        "attempts": "The attempts. Counted at the lease.",
        "next_attempt_at": "When the next attempt is due. While the notification is being sent: when its lease "
        "expires.",
        "told_at": "When the target accepted it.",
        "last_error": "The error of the last attempt.",
        "lease": "The fencing counter: the number of leases. A write with an older counter changes nothing.",
        "worker": "The process that leased it last: host and process.",
    },
    "webhook_turns": {
        "name": "A task that one process, the leader, does for all.",
        "number": "The fencing counter. A write with an older counter changes nothing.",
        "taken_at": "When a process last became the leader.",
    },
    "webhook_dlq": {
        "receipt": "The receipt.",
        "source": "As on the receipt.",
        "event_id": "As on the receipt.",
        "type": "As on the receipt.",
        "object_id": "As on the receipt.",
        "attempts": "As on the receipt.",
        "last_error": "As on the receipt.",
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
