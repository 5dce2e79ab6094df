"""`oncehook pause` and `oncehook resume`: let a source's events wait, and have them worked off again."""

import sys

import click

from oncehook.cli.app import app_option, configured
from oncehook.cli.options import config_option, json_option, opened, print_json, printable, run
from oncehook.errors import ConfigurationError
from oncehook.replay import whoami
from oncehook.settings import Configuration
from oncehook.store import Store


@click.command("pause")
@click.argument("source")
@click.option("--actor", help="Who is recorded as having done it.  [default: user@host]")
@config_option
@app_option
@json_option
def command(source: str, actor: str | None, config: str | None, as_json: bool) -> None:
    """Pause a source: its events are accepted and wait, in every process and after a restart, until it is resumed.

    What runs ends; what a worker holds and has not started goes back. An inline source answers 503 with Retry-After.
    Effects that are recorded already are performed. Exits 1 if it was paused before.

    \b
    oncehook pause stripe
    oncehook resume stripe
    """
    change(source, actor, config, as_json, paused=True)


def change(source: str, actor: str | None, config: str | None, as_json: bool, *, paused: bool) -> None:
    """Pause or resume, and say so."""
    configuration, _ = configured(config)

    async def work() -> bool:
        async with opened(configuration) as store:
            await _check(source, configuration, store)
            changed = await (store.pause if paused else store.resume)(source, actor or whoami())
            await store.notify()
            return changed

    changed, word = run(work()), "paused" if paused else "resumed"
    if as_json:
        print_json({"source": source, "paused": paused, "changed": changed})
    else:
        told = f"is {word}" if changed else "was paused before" if paused else "was not paused"
        click.echo(f"{printable(source)} {told}", err=not changed)
    sys.exit(0 if changed else 1)


async def _check(source: str, configuration: Configuration, store: Store) -> None:
    """A mistyped name would be a pause of nothing."""
    known = {*configuration.sources, *await store.known_sources()}
    known |= {row["source"] for row in await store.pauses()}
    if source not in known:
        told = f"there is no source {printable(source)}; known are {', '.join(sorted(known)) or 'none'}"
        raise ConfigurationError(f"{told}. One that is added in code and has no events yet needs --app module:inbox")
