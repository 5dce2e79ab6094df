"""`manage.py oncehook_import`: import the event ids of another package, so that no event runs twice after a switch."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist
from django.core.management.base import BaseCommand, CommandError, CommandParser

from oncehook.integrations.django.import_ids import import_event_ids
from oncehook.integrations.django.instance import project
from oncehook.integrations.django.operations import run_operation
from oncehook.model.errors import OncehookError
from oncehook.model.values import positive_duration


class Command(BaseCommand):
    """Reads the ids from a model."""

    help = "Record the ids of events that another package has handled: later deliveries of them are duplicates."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("source", help="the source that receives these events from now on")
        parser.add_argument("model", help="the model that has the events, such as djstripe.Event")
        parser.add_argument("--id", default="id", help="its field with the sender's event id (default: id)")
        parser.add_argument("--type", default="type", help="its field with the event's type (default: type)")
        parser.add_argument("--since", help="only events of this age or younger, such as 30d")
        parser.add_argument("--time", default="created", help="the field for --since (default: created)")

    def handle(self, *args: Any, **options: Any) -> None:
        """Import the ids, in batches."""
        try:
            model = apps.get_model(options["model"])
            names = [options["id"], options["type"], *([options["time"]] if options["since"] else [])]
            for name in names:
                model._meta.get_field(name)
            rows = model._default_manager.order_by(options["id"])
            if options["since"]:
                earliest = datetime.now(UTC) - timedelta(seconds=_parse_age(options["since"]))
                rows = rows.filter(**{f"{options['time']}__gte": earliest})
        except (LookupError, FieldDoesNotExist, ValueError) as error:
            raise CommandError(str(error)) from None
        events = list(rows.values_list(options["id"], options["type"]))
        reason = f"imported: handled before by {options['model']}"
        inbox = project.inbox
        try:
            new = run_operation(lambda: import_event_ids(inbox, options["source"], events, reason))
        except OncehookError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"imported {new} of {len(events)} ids; the others are recorded already")


def _parse_age(text: str) -> float:
    try:
        return positive_duration(text)
    except ValueError as error:
        raise ValueError(f"--since {text}: {error}") from None
