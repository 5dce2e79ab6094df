"""`oncehook doctor`: check the configuration and the database, and explain rejected deliveries."""

import sqlite3
import sys
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import replace
from typing import Any

import click

from oncehook.cli.app import app_option, configured_inbox, unused_settings
from oncehook.cli.doctor_spool import spool_findings
from oncehook.cli.options import config_option, console, json_option, opened, print_json, printable, run
from oncehook.concurrency.clock import SYSTEM
from oncehook.config.configuration import Configuration
from oncehook.config.secret import resolve
from oncehook.handlers.roster import IGNORE_SECONDS, MAX_TYPES
from oncehook.intake.durability import durability_risk
from oncehook.model.errors import ConfigurationError, OncehookError
from oncehook.model.event import MAIN
from oncehook.model.rows import Unhandled
from oncehook.model.values import as_duration
from oncehook.objects.reference import ObjectStoreUnavailable
from oncehook.operations.consumers import ConsumerSummary, idle_consumers
from oncehook.operations.doctor import examine
from oncehook.operations.keys import check_keys
from oncehook.operations.rotation import removed_secret
from oncehook.runtime import Runtime
from oncehook.runtime.workers import all_slots
from oncehook.store import make_standby
from oncehook.store.replica import ReplicaMonitor
from oncehook.store.rows import MAX_REJECTIONS
from oncehook.store.store import Store
from oncehook.tenants.managed import with_store

SAFE_SQLITE = (3, 51, 3)
MAX_CLOCK_DIFFERENCE = 5.0
Finding = tuple[str, str]  # the level ("ok", "note" or "wrong") and a sentence


@click.group("doctor", invoke_without_command=True)
@config_option
@app_option
@json_option
@click.pass_context
def command(context: click.Context, config: str | None, as_json: bool) -> None:
    """Check the configuration and the database. Exits 1 if something is wrong.

    \b
    oncehook doctor
    oncehook doctor signature            explain why deliveries were rejected
    oncehook doctor signature stripe
    """
    if context.invoked_subcommand is not None:
        return
    findings = run(_examine(config))
    labels = {
        "ok": click.style("ok   ", "green"),
        "note": click.style("note ", "yellow"),
        "wrong": click.style("wrong", "red"),
    }
    for level, sentence in findings:
        if as_json:
            print_json({"level": level, "message": sentence})
        else:
            click.echo(f"{labels[level]}  {sentence}")
    sys.exit(1 if any(level == "wrong" for level, _ in findings) else 0)


async def _examine(config: str | None) -> list[Finding]:
    try:
        runtime = configured_inbox(config)._runtime
        configuration = replace(runtime.configuration, settings=runtime.settings)
    except ConfigurationError as error:
        return [("wrong", str(error))]
    findings: list[Finding] = [("ok", f"configuration: {configuration.file or 'no file, only the environment'}")]
    unused = unused_settings(runtime)
    findings += [] if unused is None else [("wrong", unused)]
    findings += [finding async for finding in _database(configuration, runtime)]
    findings += await _queue(runtime)
    findings += _sources(runtime)
    findings += [] if configuration.settings.spool is None else spool_findings(configuration.settings)
    return findings


async def _database(configuration: Configuration, runtime: Runtime) -> AsyncIterator[Finding]:
    kind = configuration.settings.database.partition(":")[0]
    if kind == "sqlite" and sqlite3.sqlite_version_info < SAFE_SQLITE:
        yield (
            "note",
            f"SQLite {sqlite3.sqlite_version} can, in rare cases, corrupt a file that several connections write. "
            f"SQLite 3.51.3 fixes this; install a newer Python, which includes a newer SQLite",
        )
    try:
        slots = replace(configuration.settings, concurrency=all_slots(runtime))
        async with opened(replace(configuration, settings=slots)) as store:
            yield "ok", f"database: {kind} responds, and its schema is up to date"
            difference = abs((await store.operations.now()).timestamp() - SYSTEM.now())
            if difference > MAX_CLOCK_DIFFERENCE:
                yield (
                    "wrong",
                    f"the clocks of the database and of this machine differ by {difference:.0f} s, so valid deliveries "
                    f"can be rejected as stale. Synchronize both clocks with NTP",
                )
            for shard in store.stores:
                for risk in await shard.risks():
                    yield "note", risk
            if configuration.settings.read_database is not None:
                yield await _replica(store.stores[0])
            if configuration.settings.payload_store is not None:
                yield await _payload_store(store)
            if configuration.settings.redis is not None:
                yield await _redis(configuration.settings.redis)
            for finding in await _intakes(runtime):
                yield finding
            async for finding in _keys(runtime, store):
                yield finding
            await runtime.managed_sources.load(store)
            await runtime.consumers.load_from(store)
            idle = await idle_consumers(store)
            async for finding in _handlers(runtime, store, {state.name for state in idle}):
                yield finding
            for state in idle:
                yield "wrong", _idle_consumer(state)
            removed = [finding async for finding in _removed_secrets(runtime, store)]
            for finding in removed:
                yield finding
            rejected = await store.rejections.find(limit=1)
            if rejected and not any(level == "wrong" for level, _ in removed):
                newest = rejected[0]
                yield (
                    "note",
                    f"a delivery to {newest.source} was rejected at {newest.rejected_at[:19]} "
                    f"({newest.reason}). `oncehook doctor signature` explains why",
                )
    except OncehookError as error:
        yield "wrong", str(error)


async def _replica(store: Store) -> Finding:
    """Check the read replica. Its lag is measured once, so a busy standby may seem to be behind by an instant."""
    standby, monitor = make_standby(store.settings), ReplicaMonitor(store.settings.read_max_lag)
    await standby.open()
    try:
        position = await standby.primary_position(store.database.executor)
        monitor.record(SYSTEM.monotonic(), position, replayed := await standby.position())
    except OncehookError as error:
        return "wrong", f"read_database: {error}. The dashboard reads the primary"
    finally:
        await standby.close()
    if monitor.problem is not None:
        return "wrong", f"read_database: {monitor.problem}. The dashboard reads the primary"
    behind = max(0, position.position - replayed.position)
    return "ok", f"read_database: the standby responds, {behind:,} bytes of log behind"


async def _payload_store(store: Store) -> Finding:
    try:
        await store.objects.check()
    except ObjectStoreUnavailable as error:
        return "wrong", f"payload_store: {error}. Events whose bodies it has wait until it answers"
    number = sum([(await shard.payload_objects.counts()).number for shard in store.stores])
    return "ok", f"payload_store: {store.settings.payload_store} answers, and has {number:,} objects"


async def _redis(url: str) -> Finding:
    from oncehook.brokers.redis_cache import RedisCache  # needs an extra

    cache = RedisCache(url)
    problem = await cache.check()
    await cache.stop()
    if problem is None:
        return "ok", "redis: it answers"
    return "note", f"redis: it does not answer ({problem}). Duplicates are found in the database, which is slower"


async def _queue(runtime: Runtime) -> list[Finding]:
    if runtime.settings.queue == "database":
        return []
    from oncehook.runtime.work_queue import examine_queue

    return await examine_queue(runtime)


async def _intakes(runtime: Runtime) -> list[Finding]:
    """The queues of sources: whether they answer, and the messages that were set aside."""
    from oncehook.cli.intake import intake_findings  # only an inbox with an intake needs it

    return await intake_findings(runtime.sources)


async def _keys(runtime: Runtime, store: Store) -> AsyncIterator[Finding]:
    """A key that is missing or wrong, which would prevent a start."""
    encrypted = sorted(name for name, source in runtime.sources.items() if source.settings.encrypt)
    if encrypted and not store.keys:
        yield "wrong", f"sources.{encrypted[0]}.encrypt needs a key: `oncehook keys generate` prints one"
    try:
        await check_keys(store, encrypts=False)
    except ConfigurationError as error:
        yield "wrong", str(error)


def _idle_consumer(state: ConsumerSummary) -> str:
    events = "1 event waits" if state.waiting == 1 else f"{state.waiting:,} events wait"
    process = "it is not registered"
    if state.seen_at is not None:
        process = f"no running process has had its handlers since {state.seen_at[:19]}"
    return (
        f"consumer {state.name}: {events}, and {process}. Start a process with its handlers, or end its receipts with "
        f"`oncehook consumers remove {state.name}`"
    )


async def _handlers(runtime: Runtime, store: Store, idle: Collection[str]) -> AsyncIterator[Finding]:
    """Sources that this app has no handler for, and events that no running process has a handler for.

    The events of `idle` consumers are reported by consumer.
    """
    elsewhere = {row.source for row in await store.roster.live_handlers()}
    for name in sorted(runtime.sources.keys() - runtime.handlers.handled.sources):
        where = "another process has one" if name in elsewhere else "no running process has one, so its events wait"
        yield "note", f"source {name}: this app has no handler, forward or email projection for it; {where}"
    types = await store.roster.unhandled_types(MAIN, MAX_TYPES)
    for row in await store.roster.unhandled():
        if row.consumer not in idle:
            yield _unhandled(runtime, row, [type_ for source, type_ in types if source == row.source])


def _unhandled(runtime: Runtime, row: Unhandled, types: Sequence[str]) -> Finding:
    """The finding about unhandled events. `types` are those that the consumer `main` has of the source."""
    name, source = row.source, runtime.sources.get(row.source)
    events = "1 event has" if row.number == 1 else f"{row.number:,} events have"
    after = as_duration(IGNORE_SECONDS)
    listed = f"`oncehook events --unhandled --source {name}"
    if row.consumer != MAIN:
        return (
            "wrong",
            f"consumer {row.consumer}: {events} had no handler in any running process since {row.since[:19]}. Start "
            f"the process that handles them. {listed} --consumer {row.consumer}` lists them",
        )
    if source is not None and source.settings.unhandled == "ignore":
        return "note", f"source {name}: {events} no handler in any running process; ignored after {after}"
    if all(runtime.consumers.is_left_to_others(name, type_) for type_ in types):
        return "note", f"source {name}: {events} no handler of main, only of other consumers; ignored after {after}"
    return (
        "wrong",
        f"source {name}: {events} had no handler in any running process since {row.since[:19]}. Start the process "
        f'that handles them, exclude their types with `types`, or set unhandled = "ignore". {listed}` lists them',
    )


async def _removed_secrets(runtime: Runtime, store: Store) -> AsyncIterator[Finding]:
    """Secrets that were removed too early: wrong if deliveries were rejected since, otherwise a note."""
    used = await store.rejections.secrets_used()
    for name, source in sorted(runtime.sources.items()):
        try:
            removed = removed_secret(source, used)
        except ConfigurationError:
            continue  # its secrets are not set: _sources reports it
        if removed is not None:
            rejections = await store.rejections.find(name, limit=MAX_REJECTIONS)
            is_rejecting = any(
                row.reason == "bad_signature" and row.rejected_at > removed.last_used_at for row in rejections
            )
            advice = "Add it to `secrets` again" if is_rejecting else "The new secret has not verified a delivery yet"
            yield "wrong" if is_rejecting else "note", f"source {name}: {removed.sentence} {advice}"


def _sources(runtime: Runtime) -> list[Finding]:
    try:
        runtime.load_secrets()
    except ConfigurationError as error:
        return [("wrong", str(error))]
    findings: list[Finding] = []
    for name, source in sorted(runtime.sources.items()):
        if not source.is_verified:
            findings.append(("note", f"source {name} accepts unsigned deliveries from anyone who knows its address"))
        elif source.provider.support == "unconfirmed":
            scheme = f"the signature scheme of {source.provider_name}"
            findings.append(("note", f"source {name}: {scheme} is not confirmed; test it before you rely on it"))
        risk = durability_risk(source.settings)
        if risk is not None:
            findings.append(("note", f"source {name}: {risk}"))
    return findings or [("ok", f"sources: {', '.join(sorted(runtime.sources)) or 'none yet'}")]


# -- signatures -----------------------------------------------------------------------------------------------------


@command.command("signature", short_help="Explain why deliveries were rejected.")
@click.argument("source", required=False)
@click.option(
    "--limit", default=5, show_default=True, type=click.IntRange(1, 100), help="Maximum number of rejected deliveries."
)
@click.option(
    "--secret", multiple=True, help="Additional secret to try: env:NAME, file:PATH or the value; may be repeated."
)
@config_option
@app_option
@json_option
def signature(source: str | None, limit: int, secret: Sequence[str], config: str | None, as_json: bool) -> None:
    """Explain why deliveries were rejected: test the stored rejection samples for the usual causes, newest first.

    The command works offline, accepts no delivery and shows no secret. Exits 1 if there is no rejection sample.

    \b
    oncehook doctor signature
    oncehook doctor signature stripe --limit 1
    oncehook doctor signature stripe --secret env:OLD_STRIPE_SECRET
    """
    runtime = configured_inbox(config)._runtime
    secrets = [resolve(text, "--secret") for text in secret]
    cases = run(_diagnose(runtime, source, limit, secrets))
    for case in cases:
        print_json(case) if as_json else _print_case(case)
    if not cases:
        click.echo("there are no rejection samples", err=True)
        sys.exit(1)


async def _diagnose(runtime: Runtime, source: str | None, limit: int, secrets: Sequence[str]) -> list[dict[str, Any]]:
    async with opened(replace(runtime.configuration, settings=runtime.settings)) as store:
        await runtime.managed_sources.load(store)
        if source is not None and source not in runtime.sources:
            raise ConfigurationError(
                f"there is no source {source}; the sources are: {', '.join(sorted(runtime.sources)) or 'none'}"
            )
        lookups = {name: with_store(cache.lookup, store) for name, cache in runtime.tenants.items()}
        return await examine(store, runtime.sources, source, limit, secrets, lookups=lookups)


def _print_case(case: dict[str, Any]) -> None:
    from rich.text import Text

    out = console()
    source = f"{case['source']}/{case['tenant']}" if case["tenant"] else case["source"]
    head = f"{source}  {case['rejected_at'][:19]}  {case['reason']}  {case['size']:,} bytes"
    out.print(Text(printable(head), style="bold"))
    out.print(Text(f"  {printable(case['detail'])}", style="dim"))
    for finding in case["findings"]:
        out.print(Text(f"  {finding['cause']}: ", style="yellow").append(finding["shows"], style="default"))
        out.print(Text(f"  → {finding['remedy']}"))
    if not case["findings"]:
        out.print("  this source is no longer configured")
