"""Shared code of `oncehook sources` and `oncehook tenants`: options, secrets from the command line, the open store."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import click

from oncehook.cli.app import configured_inbox
from oncehook.cli.options import ParsedOption, opened, run
from oncehook.config.configuration import Configuration
from oncehook.config.secret import resolve
from oncehook.model.errors import ConfigurationError, OncehookError
from oncehook.model.values import LONGEST, as_duration, duration
from oncehook.runtime import Runtime
from oncehook.store.store import Store

secret_option = click.option(
    "--secret",
    "secrets",
    multiple=True,
    help="env:NAME, file:PATH or the value; may be repeated. A reference is read once, now.",
)
stdin_option = click.option("--secret-stdin", is_flag=True, help="Read the secret from standard input, one per line.")
actor_option = click.option("--actor", help="Name to record in the audit log.  [default: user@host]")


def _grace(value: str) -> float:
    """A grace period: 0 ends the older secrets at once."""
    seconds = duration(value)
    if seconds > LONGEST:
        raise ValueError(f"expected at most {as_duration(LONGEST)}")
    return seconds


grace_option = click.option(
    "--grace",
    type=ParsedOption("duration", _grace),
    help="How long the older secrets stay valid.  [default: 24h]",
)
finish_option = click.option("--finish", is_flag=True, help="End the rotation: keep only the newest secret.")


@asynccontextmanager
async def opened_runtime(config: str | None) -> AsyncIterator[tuple[Runtime, Store]]:
    """Open the database, with the configured sources and the managed ones whose keys are there."""
    runtime = configured_inbox(config)._runtime
    async with opened(replace(runtime.configuration, settings=runtime.settings)) as store:
        await runtime.managed_sources.load(store, needs_keys=False)
        yield runtime, store


def read_secrets(secrets: Sequence[str], from_stdin: bool) -> list[str]:
    """The values of the secrets: references are resolved, and standard input is read."""
    values = [resolve(secret, "--secret") for secret in secrets]
    if from_stdin:
        lines = [line.strip() for line in sys.stdin.read().splitlines()]
        values += [resolve_value(line) for line in lines if line]
        if not any(lines):
            raise ConfigurationError("--secret-stdin: standard input has no secret")
    return values


def resolve_value(value: str) -> str:
    """A secret from standard input. It is checked as one of `--secret` is, and never read as a reference."""
    if value.startswith(("env:", "file:")):
        raise ConfigurationError("--secret-stdin: pass a reference with --secret")
    return resolve(value, "--secret-stdin")


def new_secret(secrets: Sequence[str], from_stdin: bool, *, finish: bool, grace: float | None) -> str | None:
    """The new secret of a rotation; None with `--finish`."""
    values = read_secrets(secrets, from_stdin)
    if finish:
        if values or grace is not None:
            raise click.UsageError("--finish ends the rotation now: use it without --secret and --grace")
        return None
    if len(values) != 1:
        raise click.UsageError("pass the new secret with --secret or --secret-stdin, or end the rotation with --finish")
    return values[0]


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """The settings of `--set key=value`. A value is TOML; one that is not is a text."""
    import tomllib

    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if not equals or not key:
            raise click.UsageError(f"--set {pair!r} is not of the form key=value")
        if key in ("secrets", "provider"):
            raise click.UsageError(f"--set {key}: use --{'secret' if key == 'secrets' else key}")
        if key in settings:
            raise click.UsageError(f"--set {key} is repeated: pass it once")
        try:
            table = tomllib.loads(f"value = {text}")
        except tomllib.TOMLDecodeError:
            table = {}
        settings[key] = table["value"] if len(table) == 1 else text
    return settings


def with_managed(configuration: Configuration, config: str | None) -> Configuration:
    """The configuration with the managed sources, if the database and the keys are there."""

    async def load() -> Configuration:
        async with opened_runtime(config) as (runtime, _):
            sources = {source.name: source.settings for source in runtime.sources.values()}
            return replace(configuration, sources=sources)

    try:
        return run(load())
    except OncehookError:
        return configuration
