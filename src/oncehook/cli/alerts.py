"""`oncehook alerts`: list open incidents and alert rules, and send a test to the targets."""

import secrets
import sys
from dataclasses import replace
from typing import Any

import click

from oncehook.alerts import AlertMonitor
from oncehook.alerts.message import Message, make_test_message
from oncehook.alerts.monitor import advice
from oncehook.alerts.rules import BY_NAME, Reading, format_value
from oncehook.alerts.targets import AlertTarget, CommandTarget
from oncehook.cli.app import app_option, configured_inbox
from oncehook.cli.options import config_option, console, json_option, opened, print_json, printable, run
from oncehook.concurrency.calling import error_summary
from oncehook.concurrency.clock import SYSTEM
from oncehook.model.timestamps import rfc3339
from oncehook.model.values import as_duration
from oncehook.runtime import Runtime


@click.group("alerts", invoke_without_command=True)
@config_option
@app_option
@json_option
@click.pass_context
def command(context: click.Context, config: str | None, as_json: bool) -> None:
    """List the open incidents, and every alert rule with its current value.

    Configure targets and thresholds under [alerts] in oncehook.toml. An incident opens when a value exceeds its
    threshold.

    \b
    oncehook alerts
    oncehook alerts --json | jq 'select(.incident)'
    oncehook alerts test                 send a test notification to every target
    oncehook alerts test ops             send it only to the target ops
    """
    context.obj = config
    if context.invoked_subcommand is not None:
        return
    runtime = configured_inbox(config)._runtime
    incidents, not_opened, rules = run(_load(runtime))
    if as_json:
        for row in [*incidents, *rules]:
            print_json(row)
    else:
        _print_incidents(incidents, not_opened, runtime.alerts.settings.every)
        _print_rules(rules)


async def _load(runtime: Runtime) -> tuple[list[dict[str, Any]], list[Reading], list[dict[str, Any]]]:
    async with opened(replace(runtime.configuration, settings=runtime.settings)) as store:
        await runtime.managed_sources.load(store)
        runtime.alerts.check(removed=runtime.managed_sources.rows)
        alerts = AlertMonitor(store, runtime.alerts.settings, runtime.sources, runtime.http_client)
        incidents = await alerts.incidents()
        return incidents, await alerts.not_opened(incidents), await alerts.rule_states()


def _print_incidents(incidents: list[dict[str, Any]], not_opened: list[Reading], every: float) -> None:
    """Print one line per incident, then the remedy of each rule once."""
    if not incidents and not not_opened:
        click.echo("there are no open incidents")
    for incident in incidents:
        click.echo(printable(_incident_text(incident)))
        for alert in incident["alerts"]:
            if alert["status"] != "told":
                error = f": {printable(alert['last_error'])}" if alert["last_error"] else ""
                click.echo(f"  {printable(alert['target'])}: {alert['word']}, {alert['status']}{error}")
    for reading in not_opened:
        opens = f"A running `oncehook serve` or `oncehook worker` opens an incident within {as_duration(every)}."
        click.echo(f"{printable(reading.summary)} {opens}")
    remedies = [{"rule": row.rule.name, "source": row.source, "remedy": row.remedy} for row in not_opened]
    for remedy in advice([*incidents, *remedies]):
        click.echo(f"→ {printable(remedy)}")


def _incident_text(incident: dict[str, Any]) -> str:
    threshold = f" (threshold {incident['limit']})" if incident["limit"] else ""
    values = f"{incident['now']} now, {incident['at_worst']} at worst{threshold}"
    text = f"{incident['title']}: {values}, since {incident['opened_at'][:19]}Z"
    closes = (
        f"; closes at {incident['closes_at'][11:19]}Z if it stays below the threshold" if incident["closes_at"] else ""
    )
    return text + closes


def _print_rules(rules: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("rule", "now", "threshold", "source", "state"):
        table.add_column(title, justify="right" if title in ("now", "threshold") else "left", no_wrap=True)
    for row in rules:
        rule, state = BY_NAME[row["rule"]], "firing" if row["is_firing"] else "" if row["is_on"] else "off"
        now, threshold = (
            "–" if row[name] is None else format_value(rule, row[name]) for name in ("value", "threshold")
        )
        table.add_row(row["rule"], now, threshold, printable(row["source"] or ""), state)
    click.echo()
    console().print(table)


@command.command("test", short_help="Send a test notification to the targets.")
@click.argument("target", required=False)
@config_option
@app_option
@click.pass_obj
def test(config_of_group: str | None, target: str | None, config: str | None) -> None:
    """Send a test notification to every target, or only to TARGET, and print each response. Exits 1 if a target failed.

    \b
    oncehook alerts test
    oncehook alerts test ops
    """
    runtime = configured_inbox(config or config_of_group)._runtime
    runtime.alerts.load_targets()
    targets = runtime.alerts.targets
    if target is not None and target not in targets:
        known = ", ".join(targets) or "none"
        raise click.UsageError(f"there is no [alerts.targets.{target}] in the configuration; the targets are: {known}")
    chosen = list(targets.values()) if target is None else [targets[target]]
    if not chosen:
        click.echo("there are no alert targets: add one as [alerts.targets.NAME] in oncehook.toml", err=True)
        sys.exit(1)
    sys.exit(0 if run(_test(runtime, chosen)) else 1)


async def _test(runtime: Runtime, targets: list[AlertTarget]) -> bool:
    message, all_sent = make_test_message(f"{secrets.token_hex(12)}-test", rfc3339(SYSTEM.datetime()) or ""), True
    try:
        for target in targets:
            outcome, detail = await _send(target, message)
            all_sent = all_sent and outcome == "sent"
            click.echo(f"{target.name}  {target.kind} {printable(target.where)}  {outcome}: {printable(detail)}")
    finally:
        await runtime.http_client.close()
    return all_sent


async def _send(target: AlertTarget, message: Message) -> tuple[str, str]:
    if isinstance(target, CommandTarget):
        target.errors_to = None  # show them to the person who runs the test
    try:
        return "sent", await target.send(message)
    except Exception as error:
        return "failed", error_summary(error).partition(": ")[2]
