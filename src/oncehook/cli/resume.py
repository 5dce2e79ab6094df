"""`oncehook resume`: handle the events of a paused source again."""

from functools import partial

import click

from oncehook.cli.app import app_option
from oncehook.cli.options import config_option, json_option
from oncehook.cli.pause import change
from oncehook.operations.pause import resume


@click.command("resume")
@click.argument("source")
@click.option("--actor", help="Name to record in the audit log.  [default: user@host]")
@config_option
@app_option
@json_option
def command(source: str, actor: str | None, config: str | None, as_json: bool) -> None:
    """Resume a paused source: workers handle its waiting events, oldest first. Exits 1 if it was not paused.

    \b
    oncehook resume stripe
    """
    change(source, config, as_json, partial(resume, actor=actor), paused=False)
