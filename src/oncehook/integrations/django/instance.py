"""The inbox of a Django project: built from its settings, with the handlers of every app's `webhooks.py`."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_started
from django.db import connections
from django.utils.module_loading import autodiscover_modules

from oncehook.integrations.django.configuration import DjangoConfiguration, django_address, read_setting
from oncehook.integrations.django.sessions import Sessions
from oncehook.integrations.django.signals import observe_attempts
from oncehook.model.errors import ConfigurationError
from oncehook.observability import signals
from oncehook.store.store import Store

if TYPE_CHECKING:
    from oncehook.inbox import Inbox


class DjangoDatabase:
    """A database of Django, as the `engine` of an inbox: handlers' transactions are on its connections."""

    def __init__(self, alias: str) -> None:
        self.alias = alias

    def make_sessions(self, store: Store) -> Sessions:
        return Sessions(self.alias, store)

    def dispose(self, close: bool = True) -> None:
        """Do nothing after a fork: `Sessions` notices it."""


@contextmanager
def fresh_connections() -> Iterator[None]:
    """Close the connections that a handler or an effect has opened in its thread: the thread ends with the call."""
    try:
        yield
    finally:
        if asyncio._get_running_loop() is None:  # an `async def` queries in a thread of asgiref
            connections.close_all()


class ProjectInbox:
    """The inbox of the project, built when the apps are loaded. A mistake in its settings is kept for the checks."""

    def __init__(self) -> None:
        self.error: ConfigurationError | None = None
        self.settings: DjangoConfiguration | None = None
        self._inbox: Inbox | None = None
        self._is_error_logged = False

    def load(self) -> None:
        """Build the inbox, and import `webhooks.py` of every app, which adds the handlers."""
        request_started.connect(self.start_in_background, dispatch_uid="oncehook")
        try:
            self.build()
            observe_attempts()
            autodiscover_modules("webhooks")
        except ConfigurationError as error:
            self.error = error

    def build(self) -> "Inbox":
        from oncehook.inbox import Inbox

        self.settings = read_setting()
        self._inbox = Inbox(
            config=self.settings.configuration,
            worker=self.settings.worker,
            engine=DjangoDatabase(self.settings.using),  # type: ignore[arg-type]  # it makes its own sessions
        )
        self._inbox._surround("django", fresh_connections)
        return self._inbox

    @property
    def inbox(self) -> "Inbox":
        """The inbox. Raises ImproperlyConfigured if the settings cannot be used, or before the apps are loaded."""
        if self.error is not None:
            raise ImproperlyConfigured(str(self.error))
        if self._inbox is None:
            raise ImproperlyConfigured(
                "the inbox does not exist yet: add 'oncehook.integrations.django' to INSTALLED_APPS, and import "
                "`inbox` in webhooks.py, which is loaded after all models"
            )
        return self._inbox

    def start_in_background(self, **request: Any) -> None:
        """Start the inbox with the first request of a web process, so that its worker handles events that wait.

        After a start that failed, a later request tries again. It does not start in a test, where Django uses another
        database than the one of the settings. Settings that cannot be used are logged once: a page may be all that a
        process is asked for, and deliveries get only 500.
        """
        if self.error is not None and not self._is_error_logged:
            self._is_error_logged = True
            signals.emit("settings_not_usable", detail=str(self.error))
        if self.settings is None or not self.settings.worker or self._inbox is None or self.error is not None:
            return
        thread = self._inbox.wsgi.thread
        if thread.handover is None and _uses_database(self.settings):
            thread.start_soon()

    @contextmanager
    def replaced_by(self, other: "Inbox") -> Iterator[None]:
        """Use another inbox in the block, such as the copy of a test."""
        before, self._inbox = self._inbox, other
        try:
            yield
        finally:
            self._inbox = before

    @property
    def using(self) -> str:
        """The alias of the inbox's database."""
        return "default" if self.settings is None else self.settings.using


def _uses_database(settings: DjangoConfiguration) -> bool:
    """Whether Django uses the database of the settings. In a test it does not."""
    try:
        return django_address(settings.using) == settings.configuration.settings.database
    except ConfigurationError:  # in memory
        return False


project = ProjectInbox()


def get_inbox() -> Any:
    return project.inbox
