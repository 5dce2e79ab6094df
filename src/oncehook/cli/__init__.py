"""The command line: one file per command, imported when the command runs, so that --help is quick."""

import importlib
import sys

import click

from oncehook.model.errors import ConfigurationError, OncehookError

COMMANDS = {
    "serve": "Run the inbox as a service.",
    "demo": "A tour: a few sources, and traffic that retries, duplicates, reorders and forges.",
    "worker": "Handle accepted events, and receive none.",
    "init": "Write an oncehook.toml, a hooks.py with a handler, and its test.",
    "migrate": "Bring the database's schema up to date.",
    "schema": "Print the SQL of the tables, or their columns with what they mean.",
    "events": "List what arrived, newest first.",
    "show": "Show one event: what arrived, and how often.",
    "dead": "List the dead letters, grouped by what went wrong.",
    "replay": "Have finished events handled again, or rehearse it.",
    "retry": "Run waiting retries now.",
    "pause": "Let a source's events wait: they are accepted, and not worked on.",
    "resume": "Have a paused source's events worked off.",
    "effects": "List what is done after the commit, and try failed ones again.",
    "stats": "How many events each source has, in which state, and how long the oldest waits.",
    "alerts": "What is wrong now, what is watched, and whether the targets can be told.",
    "prune": "Remove what is past its window and its retention, or say what would go.",
    "forget": "Erase the payloads about an object or an address; duplicates are still recognised.",
    "email": "What follows from email events: status, suppressions, counts.",
    "access": "Let somebody use the dashboard: the lines for oncehook.toml.",
    "send": "Sign and post realistic events of a provider.",
    "providers": "List the providers, or explain one.",
    "doctor": "Look over the configuration and the database, or say why deliveries were refused.",
    "secrets": "Which secrets still verify deliveries, and which may go.",
}


class Commands(click.Group):
    """The commands of the table above, each in the module of its name."""

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
    oncehook demo                              see it work
    oncehook init stripe && oncehook serve     start your own
    oncehook send stripe invoice.paid          try it
    oncehook events                            look at what arrived
    """


def main() -> None:
    """Run the command line. A user's mistake is a sentence and exit code 2, never a traceback."""
    try:
        code = oncehook(standalone_mode=False)
    except click.exceptions.Abort:
        code = 130
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except ConfigurationError as error:
        click.echo(f"oncehook: {error}", err=True)
        code = 2
    except UnicodeError:
        click.echo("oncehook: what was given is not valid text (UTF-8)", err=True)
        code = 2
    except OSError as error:
        click.echo(f"oncehook: {error}", err=True)
        code = 1
    except OncehookError as error:
        click.echo(f"oncehook: {error}", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
