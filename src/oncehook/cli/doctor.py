"""`oncehook doctor`: what is wrong here, and why were deliveries refused?"""

import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import click

from oncehook.cli.app import app_option, configured_inbox
from oncehook.cli.options import config_option, console, json_option, opened, print_json, printable, run
from oncehook.concurrency.clock import SYSTEM
from oncehook.config.configuration import Configuration
from oncehook.config.secret import resolve
from oncehook.handlers.roster import IGNORE_SECONDS
from oncehook.model.errors import ConfigurationError, OncehookError
from oncehook.model.values import as_duration
from oncehook.operations.doctor import examine
from oncehook.operations.rotation import removed_secret
from oncehook.runtime import Runtime
from oncehook.store.rows import REJECTIONS_KEPT
from oncehook.store.store import Store

SAFE_SQLITE = (3, 51, 3)
MOST_SECONDS_APART = 5.0
Finding = tuple[str, str]  # ("ok" | "note" | "wrong", a sentence)


@click.group("doctor", invoke_without_command=True)
@config_option
@app_option
@json_option
@click.pass_context
def command(context: click.Context, config: str | None, as_json: bool) -> None:
    """Look over the configuration and the database. Exits 1 if something is wrong.

    \b
    oncehook doctor
    oncehook doctor signature            why were deliveries refused?
    oncehook doctor signature stripe
    """
    if context.invoked_subcommand is not None:
        return
    found = run(_examine(config))
    for word, sentence in found:
        if as_json:
            print_json({"level": word, "message": sentence})
        else:
            mark = {"ok": click.style("ok   ", "green"), "note": click.style("note ", "yellow")}
            click.echo(f"{mark.get(word, click.style('wrong', 'red'))}  {sentence}")
    sys.exit(1 if any(word == "wrong" for word, _ in found) else 0)


async def _examine(config: str | None) -> list[Finding]:
    try:
        runtime = configured_inbox(config)._runtime
        configuration = replace(runtime.configuration, settings=runtime.settings)
    except ConfigurationError as error:
        return [("wrong", str(error))]
    found: list[Finding] = [("ok", f"configuration: {configuration.file or 'no file, only the environment'}")]
    found += [finding async for finding in _database(configuration, runtime)]
    found += _sources(runtime)
    return found


async def _database(configuration: Configuration, runtime: Runtime) -> AsyncIterator[Finding]:
    kind = configuration.settings.database.partition(":")[0]
    if kind == "sqlite" and sqlite3.sqlite_version_info < SAFE_SQLITE:
        yield (
            "note",
            f"SQLite {sqlite3.sqlite_version} is older than 3.51.3, which fixes a rare corruption of files that "
            f"several connections write; a newer Python brings a newer SQLite",
        )
    try:
        async with opened(configuration) as store:
            yield "ok", f"database: {kind} answers, and its schema is up to date"
            apart = abs((await store.operations.now()).timestamp() - SYSTEM.now())
            if apart > MOST_SECONDS_APART:
                yield (
                    "wrong",
                    f"the database's clock and this machine's are {apart:.0f} s apart: signatures will look stale",
                )
            for risk in await store.risks():
                yield "note", risk
            async for finding in _handlers(runtime, store):
                yield finding
            removed = [finding async for finding in _removed_secrets(runtime, store)]
            for finding in removed:
                yield finding
            rejected = await store.rejections.find(limit=1)
            if rejected and not any(word == "wrong" for word, _ in removed):
                newest = rejected[0]
                yield (
                    "note",
                    f"a delivery to {newest.source} was refused at {newest.rejected_at[:19]} "
                    f"({newest.reason}): see `oncehook doctor signature`",
                )
    except OncehookError as error:
        yield "wrong", str(error)


async def _handlers(runtime: Runtime, store: Store) -> AsyncIterator[Finding]:
    """Sources whose events this app has no handler for, and events that no process has one for."""
    elsewhere = {row.source for row in await store.roster.live_handlers()}
    for name in sorted(runtime.sources.keys() - runtime.handlers.handled.sources):
        who = "another process does" if name in elsewhere else "no running process does either, and its events wait"
        yield "note", f"source {name}: this app handles none of its events (no handler, forward or email); {who}"
    for name, row in (await store.roster.unhandled()).items():
        events = "1 event has" if row.number == 1 else f"{row.number:,} events have"
        source = runtime.sources.get(name)
        if source is not None and source.settings.unhandled == "ignore":
            after = as_duration(IGNORE_SECONDS)
            yield "note", f"source {name}: {events} no handler anywhere: ignored after {after} without one"
            continue
        yield (
            "wrong",
            f"source {name}: {events} no handler anywhere since {row.since[:19]}: start the "
            f'process that handles them, leave their types out with `types`, or set unhandled = "ignore"; see '
            f"`oncehook events --unhandled --source {name}`",
        )


async def _removed_secrets(runtime: Runtime, store: Store) -> AsyncIterator[Finding]:
    """Secrets that were taken out too early: a problem where deliveries have been refused since."""
    used = await store.rejections.secrets_used()
    for name, source in sorted(runtime.sources.items()):
        try:
            removed = removed_secret(source, used)
        except ConfigurationError:
            continue  # its secrets are not set, which is said elsewhere
        if removed is not None:
            refused = await store.rejections.find(name, limit=REJECTIONS_KEPT)
            is_refusing = any(
                row.reason == "bad_signature" and row.rejected_at > removed.last_used_at for row in refused
            )
            advice = "add it to `secrets` beside the new one" if is_refusing else "the new one has not verified any yet"
            yield "wrong" if is_refusing else "note", f"source {name}: {removed.sentence.rstrip('.')}: {advice}"


def _sources(runtime: Runtime) -> list[Finding]:
    try:
        runtime.load_secrets()
    except ConfigurationError as error:
        return [("wrong", str(error))]
    found: list[Finding] = []
    for name, source in sorted(runtime.sources.items()):
        if not source.is_verified:
            found.append(("note", f"source {name} accepts unsigned deliveries from anyone who knows its address"))
        elif source.provider.support == "unconfirmed":
            found.append(
                (
                    "note",
                    f"source {name}: the scheme of {source.provider_name} is not confirmed; try it before you rely",
                )
            )
    return found or [("ok", f"sources: {', '.join(sorted(runtime.sources)) or 'none yet'}")]


# -- signatures -----------------------------------------------------------------------------------------------------


@command.command("signature")
@click.argument("source", required=False)
@click.option("--limit", default=5, show_default=True, type=click.IntRange(1, 100), help="How many refused requests.")
@click.option("--secret", multiple=True, help="One more to try: env:NAME, file:PATH or the value. May be repeated.")
@config_option
@app_option
@json_option
def signature(source: str | None, limit: int, secret: Sequence[str], config: str | None, as_json: bool) -> None:
    """Say why deliveries were refused: the usual causes are tried offline on the kept samples, newest first.

    It never accepts anything, and no secret is shown. Exits 1 if no refused delivery is kept.

    \b
    oncehook doctor signature
    oncehook doctor signature stripe --limit 1
    oncehook doctor signature stripe --secret env:STRIPE_SECRET_BEFORE
    """
    runtime = configured_inbox(config)._runtime
    if source is not None and source not in runtime.sources:
        raise ConfigurationError(
            f"there is no source {source}; known are {', '.join(sorted(runtime.sources)) or 'none'}"
        )
    secrets = [resolve(text, "--secret") for text in secret]
    cases = run(_cases(runtime, source, limit, secrets))
    for case in cases:
        print_json(case) if as_json else _print_case(case)
    if not cases:
        click.echo("no refused delivery is kept", err=True)
        sys.exit(1)


async def _cases(runtime: Runtime, source: str | None, limit: int, secrets: Sequence[str]) -> list[dict[str, Any]]:
    async with opened(replace(runtime.configuration, settings=runtime.settings)) as store:
        return await examine(store, runtime.sources, source, limit, secrets)


def _print_case(case: dict[str, Any]) -> None:
    from rich.text import Text

    out = console()
    head = f"{case['source']}  {case['rejected_at'][:19]}  {case['reason']}  {case['size']:,} bytes"
    out.print(Text(printable(head), style="bold"))
    out.print(Text(f"  {printable(case['detail'])}", style="dim"))
    for finding in case["findings"]:
        out.print(Text(f"  {finding['cause']}: ", style="yellow").append(finding["shows"], style="default"))
        out.print(Text(f"  → {finding['remedy']}"))
    if not case["findings"]:
        out.print("  this source is not in the configuration any more")
