"""`manage.py oncehook …`: the whole command line of Oncehook, with the project's inbox."""

import sys
from argparse import REMAINDER
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from oncehook.integrations.django.instance import project


class Command(BaseCommand):
    """Passes its arguments to the `oncehook` command line."""

    help = "Run a command of Oncehook on the project's inbox, such as `manage.py oncehook events`."
    requires_system_checks = ()  # `oncehook doctor` explains wrong settings; other commands stop on them below

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass every argument on, such as --help and --version, which Django would read itself."""
        self._run(argv[2:])

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run a command from code: `call_command("oncehook", "events", "--json")`."""
        self._run([*args, *options["arguments"]])

    def _run(self, arguments: list[str]) -> None:
        from oncehook.cli import main
        from oncehook.cli.app import project_inbox

        if project.error is not None:
            sys.exit(f"oncehook: {project.error}")
        with project_inbox(project.inbox, (sys.executable, *sys.argv[:1], "oncehook")):
            main(arguments, program="manage.py oncehook")
