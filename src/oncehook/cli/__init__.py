"""The command line. Each command is a module, imported only when the command runs, so that --help stays fast."""

import importlib
import sys

import click

from oncehook.model.errors import ConfigurationError, OncehookError

COMMANDS = {
    "serve": "Run the inbox as a service.",
    "demo": "Run an inbox with simulated traffic: retries, duplicates, late and forged deliveries.",
    "worker": "Run handlers without receiving deliveries.",
    "init": "Write oncehook.toml, a hooks.py with a handler, and a test.",
    "migrate": "Bring the database schema up to date.",
    "schema": "Print the SQL of the tables, or list their columns.",
    "events": "List events, newest first.",
    "show": "Show one event with its deliveries, attempts and payload.",
    "dead": "List dead letters, grouped by error.",
    "replay": "Run the handlers of finished events again, or rehearse them.",
    "retry": "Run waiting retries now.",
    "pause": "Pause a source or a consumer: its events are accepted but not handled.",
    "resume": "Resume a paused source or consumer.",
    "consumers": "List the consumers with their work, or remove one.",
    "backfill": "Give a consumer the events that arrived before it subscribed.",
    "effects": "List effects, and replay failed ones.",
    "stats": "Count events by source and status, with lag and age.",
    "alerts": "List open incidents and alert rules, and test the targets.",
    "fsck": "Check that the database agrees with the guarantees.",
    "prune": "Delete receipts and payloads that are past their retention.",
    "forget": "Erase the payloads about an object or an email address.",
    "email": "Query email status, suppressions and counts.",
    "access": "Give a person or a program access to the dashboard.",
    "send": "Sign and send realistic events of a provider.",
    "providers": "List the providers, or describe one.",
    "doctor": "Check the configuration and the database, or explain rejections.",
    "keys": "Make and replace the keys that encrypt the database.",
    "sources": "Add, list, rotate and remove sources while the inbox runs.",
    "tenants": "Add, list, rotate and remove tenants while the inbox runs.",
    "shards": "List the shards, and move a source from one to another.",
    "intake": "Count the messages in the queues of sources.",
    "secrets": "Show which secrets are in use and which can be removed.",
}


class Commands(click.Group):
    """The commands of `COMMANDS`. Each is the `command` of the module with its name."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"oncehook.cli.{name}").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="oncehook", message="oncehook %(version)s")
def oncehook() -> None:
    """Every webhook, exactly once.

    \b
    oncehook demo                              watch an inbox at work
    oncehook init stripe && oncehook serve     start your own
    oncehook send stripe invoice.paid          send it an event
    oncehook events                            list the events
    """


def main(arguments: list[str] | None = None, *, program: str | None = None) -> None:
    """Run the command line. A user error prints one message and exits 2, without a traceback."""
    try:
        code = oncehook(arguments, prog_name=program, standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except ConfigurationError as error:
        click.echo(f"oncehook: {error}", err=True)
        code = 2
    except UnicodeError:
        click.echo("oncehook: an argument or a file is not valid UTF-8", err=True)
        code = 2
    except OSError as error:
        click.echo(f"oncehook: {error}", err=True)
        code = 1
    except OncehookError as error:
        click.echo(f"oncehook: {error}", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
