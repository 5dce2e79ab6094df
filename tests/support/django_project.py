"""A Django project in this process, whose database is that of the test."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connections

from tests.support.django_database import django_database

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
APPS = ["contenttypes", "auth", "sessions", "messages", "admin"]

if not settings.configured:
    settings.configure(
        SECRET_KEY="only for tests",
        USE_TZ=True,
        ALLOWED_HOSTS=["*"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "unused.sqlite3"}},
        INSTALLED_APPS=[
            *(f"django.contrib.{app}" for app in APPS),
            "oncehook.integrations.django",
            "tests.support.django_shop",
        ],
        MIDDLEWARE=MIDDLEWARE,
        TEMPLATES=TEMPLATES,
        ROOT_URLCONF="tests.support.django_shop.urls",
        STATIC_URL="static/",
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        ONCEHOOK={"sources": {"stripe": {"secrets": ["whsec_test"]}}, "poll": "50ms", "worker": False},
    )
    django.setup()


@contextmanager
def using_database(address: str, **changes: Any) -> Iterator[Any]:
    """Use a database as Django's `default`, and build the inbox of the project on it."""
    from oncehook.integrations.django.instance import project

    _forget_connection()
    before = connections.settings["default"]
    connections.settings["default"] = connections.configure_settings(
        {"default": {**django_database(address), **changes}}
    )["default"]
    try:
        yield project.build()
    finally:
        _forget_connection()
        connections.settings["default"] = before


def _forget_connection() -> None:
    with allowed_in_loop():
        connections.close_all()
    if hasattr(connections._connections, "default"):
        del connections["default"]


def create_tables() -> None:
    """Create the tables of the shop."""
    from tests.support.django_shop.models import Invoice, Payment

    with allowed_in_loop(), connections["default"].schema_editor() as editor:
        for model in (Invoice, Payment):
            editor.create_model(model)


def create_all_tables() -> None:
    """Create the tables of all apps, with those of users and sessions, which takes a second."""
    call_command("migrate", run_syncdb=True, verbosity=0)


@contextmanager
def allowed_in_loop() -> Iterator[None]:
    """Let the test itself use Django's connection in the event loop."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    try:
        yield
    finally:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
