"""`oncehook keys`: make, list and replace the keys that encrypt payloads and secrets at rest."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, json_option, opened_store, print_json, printable, run
from oncehook.cli.tables import Column, print_table
from oncehook.config.keyring import KEY_ID, KeyRing, generate_key, read_keys
from oncehook.model.errors import ConfigurationError
from oncehook.model.rows import KeyUse
from oncehook.operations.keys import Abandoned, Progress, Rotation, abandon, rotate
from oncehook.operations.replay import whoami

FIRST = """
This is the first key. Set it for every process, and restart them:
  ONCEHOOK_KEYS={entry}
Keep a copy in a safe place that is not a backup of the database.
Without the key, the values that it encrypted cannot be read."""

ANOTHER = """
To replace the key {old} without an interruption:
  1. Add the new entry behind the others, and restart every process: ONCEHOOK_KEYS={old}:…,{entry}
  2. Put it in front, and restart every process: ONCEHOOK_KEYS={entry},{old}:…
  3. Run `oncehook keys rotate`, which encrypts all rows with the new key.
  4. If `oncehook keys list` shows no rows of {old}, remove it.
Keep a copy in a safe place that is not a backup of the database.
Without the key, the values that it encrypted cannot be read."""

COLUMNS = (
    Column("key"),
    Column("state", colors={"encrypts": "green", "missing": "red"}),
    Column("rows", truncates=True),
    Column("advice", truncates=True),
)


@click.group("keys")
def command() -> None:
    """Make, list and replace the keys that encrypt payloads and secrets in the database.

    The keys are in ONCEHOOK_KEYS, or in `keys` of oncehook.toml. The first encrypts, and all decrypt.

    \b
    oncehook keys generate     print a new key
    oncehook keys list         show which keys are in use
    oncehook keys rotate       encrypt all rows with the first key
    oncehook keys abandon ID   erase what a lost key encrypted
    """


@command.command("generate")
@click.option("--id", "key_id", help="Id of the key.  [default: the date]")
@config_option
@app_option
def generate(key_id: str | None, config: str | None) -> None:
    """Print a new random key as an entry of ONCEHOOK_KEYS, and how to use it. Nothing is stored.

    The entry is printed to standard output, the explanation to standard error.

    \b
    oncehook keys generate
    oncehook keys generate --id 2027 >> keys.txt
    """
    ring = _configured_ring(config)
    if key_id is None:
        key_id = _unused_id(ring)
    elif not KEY_ID.fullmatch(key_id):
        raise click.UsageError("--id may have up to 32 letters, digits, - and _, and must not be env or file")
    elif key_id in ring:
        raise click.UsageError(f"--id {key_id} is already in the key ring: each key needs its own id")
    entry = f"{key_id}:{generate_key()}"
    click.echo(entry)
    click.echo((ANOTHER if ring else FIRST).format(entry=entry, old=ring.primary), err=True)


def _configured_ring(config: str | None) -> KeyRing:
    """The key ring of the configuration. It is empty if it cannot be read, since a new key does not depend on it."""
    try:
        return read_keys(configured(config)[0].settings.keys)
    except ConfigurationError:
        return KeyRing()


def _unused_id(ring: KeyRing) -> str:
    """The date, with a letter if a key of the same day is in the ring."""
    today = datetime.now(UTC).strftime("%Y%m%d")
    return next(id for id in (today, *(today + letter for letter in "bcdefghijklmnopqrstuvwxyz")) if id not in ring)


@command.command("list")
@config_option
@app_option
@json_option
def list_keys(config: str | None, as_json: bool) -> None:
    """List the keys, how many rows of each table each of them encrypted, and which keys are missing. Exits 1 if a key
    is missing.

    \b
    oncehook keys list
    oncehook keys list --json
    """
    sys.exit(run(_list(config, as_json)))


async def _list(config: str | None, as_json: bool) -> int:
    async with opened_store(config) as store:
        ring, uses = store.keys, await store.encrypted_rows.counts()
        registered = [key.key_id for key in await store.encrypted_rows.registered()]
    ids = dict.fromkeys((*ring.key_ids, *registered, *(use.key_id for use in uses)))
    rows = [_key_row(ring, key_id, uses) for key_id in ids]
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        print_table(COLUMNS, [(row["key"], row["state"], _tables_text(row["rows"]), row["advice"]) for row in rows])
    else:
        click.echo("no key is configured, and no row is encrypted", err=True)
    return int(any(row["state"] == "missing" for row in rows))


def _key_row(ring: KeyRing, key_id: str, uses: list[KeyUse]) -> dict[str, Any]:
    tables = {use.table: use.number for use in uses if use.key_id == key_id}
    state = "encrypts" if key_id == ring.primary else "decrypts" if key_id in ring else "missing"
    return {"key": key_id, "state": state, "rows": tables, "advice": _advice(state, tables)}


def _advice(state: str, tables: dict[str, int]) -> str:
    if state == "missing":
        return "add it to ONCEHOOK_KEYS: these rows cannot be read" if tables else "run `oncehook keys rotate`"
    if state == "decrypts":
        return "run `oncehook keys rotate`" if tables else "you can remove it"
    return ""


def _tables_text(tables: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {table.removeprefix('webhook_')}" for table, number in tables.items()) or "none"


@command.command("rotate")
@config_option
@app_option
@json_option
def rotate_rows(config: str | None, as_json: bool) -> None:
    """Encrypt all rows with the first key of the key ring. After that, you can remove the others. Exits 1 if some rows
    are still encrypted with another key.

    Processes can run during the rotation. You can interrupt it and run it again: it continues with the rows that are
    left. Before it, restart every process with the new key in front, because others still encrypt with the old one.

    \b
    oncehook keys rotate
    """
    done = run(_rotate(config))
    if as_json:
        unreadable = dict(done.unreadable)
        facts = {"resealed": done.resealed, "locked": done.locked, "unreadable": unreadable}
        print_json({**facts, "removable": done.removable})
    else:
        _print_rotation(done)
    sys.exit(int(bool(done.locked or done.unreadable)))


async def _rotate(config: str | None) -> Rotation:
    async with opened_store(config) as store:
        with _status() as progress:
            return await rotate(store, progress, actor=whoami())


@contextmanager
def _status() -> Iterator[Progress]:
    """A status line with the progress, if standard error is a terminal."""
    from rich.console import Console

    with Console(stderr=True).status("encrypting") as status:
        yield lambda part, rows: status.update(f"encrypting {part}: {rows:,} rows so far")


def _print_rotation(done: Rotation) -> None:
    click.echo(f"encrypted {_rows(done.resealed)} with the first key")
    for key_id, number in done.unreadable.items():
        click.echo(
            f"{_rows(number)} cannot be decrypted: the key {key_id} is missing or wrong. Add it to ONCEHOOK_KEYS "
            f"behind the first, and run the command again",
            err=True,
        )
    if done.locked:
        click.echo(f"{_rows(done.locked)} were in use: run the command again", err=True)
    for key_id in done.removable:
        click.echo(f"no row needs the key {key_id} any more: you can remove it from ONCEHOOK_KEYS")


def _rows(number: int) -> str:
    return f"{number:,} row{'s' * (number != 1)}"


@command.command("abandon")
@click.argument("key_id", metavar="ID")
@click.option("--yes", is_flag=True, help="Do not prompt for confirmation.")
@click.option("--actor", help="Name to record in the audit log.  [default: user@host]")
@config_option
@app_option
def abandon_key(key_id: str, yes: bool, actor: str | None, config: str | None) -> None:
    """Erase the payloads, error texts and arguments that a lost key encrypted, so that the inbox starts without it.

    Only for a key of which no copy is left. Nothing can restore these values afterwards. The receipts stay, and events
    that are not finished become dead letters.

    \b
    oncehook keys abandon 2026a
    """
    question = f"Permanently erase everything that the key {printable(key_id)} encrypted?"
    if not yes and not sys.stdin.isatty():
        raise click.UsageError("this would permanently erase payloads: confirm with --yes")
    if not yes:
        click.confirm(question, abort=True, err=True)
    _print_abandoned(key_id, run(_abandon(config, key_id, actor or whoami())))


async def _abandon(config: str | None, key_id: str, actor: str) -> Abandoned:
    async with opened_store(config) as store:
        return await abandon(store, key_id, actor=actor)


def _print_abandoned(key_id: str, done: Abandoned) -> None:
    payloads = f"{done.payloads:,} payload{'s' * (done.payloads != 1)}"
    click.echo(f"erased {payloads}, and error texts or arguments of {_rows(done.texts)}; the receipts are kept")
    if done.secrets:
        click.echo(
            f"the secrets of {done.secrets:,} managed sources or tenants were encrypted with {printable(key_id)} too: "
            f"remove these and add them again",
            err=True,
        )
