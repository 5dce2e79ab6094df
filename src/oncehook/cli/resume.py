"""`oncehook resume`: handle the events of a paused source or consumer again."""

from functools import partial

import click

from oncehook.cli.app import app_option
from oncehook.cli.options import config_option, json_option
from oncehook.cli.pause import change, consumer_option
from oncehook.operations.pause import resume


@click.command("resume")
@click.argument("source", required=False)
@consumer_option
@click.option("--actor", help="Name to record in the audit log.  [default: user@host]")
@config_option
@app_option
@json_option
def command(source: str | None, consumer: str | None, actor: str | None, config: str | None, as_json: bool) -> None:
    """Resume a paused source or consumer: workers handle its waiting events, oldest first. Exits 1 if it was not
    paused.

    \b
    oncehook resume stripe
    oncehook resume --consumer analytics
    """
    change(source or "", consumer or "", config, partial(resume, actor=actor), as_json=as_json, paused=False)
