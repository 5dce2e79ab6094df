"""`oncehook keys`: make a key for the key ring that encrypts payloads and secrets at rest."""

from datetime import UTC, datetime

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option
from oncehook.config.keyring import KEY_ID, KeyRing, generate_key, read_keys
from oncehook.model.errors import ConfigurationError

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


@click.group("keys")
@config_option
@app_option
@click.pass_context
def command(context: click.Context, config: str | None) -> None:
    """Make, list and replace the keys that encrypt payloads and secrets in the database.

    The keys are in ONCEHOOK_KEYS, or in `keys` of oncehook.toml. The first encrypts, and all decrypt.

    \b
    oncehook keys generate
    """
    context.obj = config


@command.command("generate")
@click.option("--id", "key_id", help="Id of the key.  [default: the date]")
@click.pass_obj
def generate(config: str | None, key_id: str | None) -> None:
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
