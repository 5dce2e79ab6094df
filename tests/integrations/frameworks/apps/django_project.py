"""The Django project of `django_wsgi_app` and `django_asgi_app`. Its inbox comes from its settings."""

import logging
import os
import sys
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse

from oncehook import SyncEvent
from tests.support.django_database import django_database
from tests.support.events import STRIPE_SECRET
from tests.support.waiting import wait_until

logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)

FOLDER = Path(os.environ["SHOP_FOLDER"])

settings.configure(
    DATABASES={"default": {**django_database(os.environ["SHOP_DATABASE"]), "ATOMIC_REQUESTS": True}},
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "oncehook.integrations.django"],
    MIDDLEWARE=["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"],
    ROOT_URLCONF="tests.integrations.frameworks.apps.django_urls",
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="only for tests",
    USE_TZ=True,
    LOGGING_CONFIG=None,
    ONCEHOOK={
        "poll": "50ms",
        "lease": "2s",
        "claim_timeout": "2s",
        "receive_timeout": "2s",
        "stop_grace": "10s",
        "max_body": "20kB",
        "sources": {"stripe": {"secrets": [STRIPE_SECRET]}},
    },
)
django.setup()

from oncehook.integrations.django import inbox  # noqa: E402  # in a project: in webhooks.py, which is imported later


def write(event: SyncEvent) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO ledger (note) VALUES (%s)", [event.id])


@inbox.on("stripe", "invoice.*")
def invoice(event: SyncEvent) -> None:
    write(event)


@inbox.on("stripe", "slow.*")
def slow(event: SyncEvent) -> None:
    (FOLDER / f"started-{event.id}").touch()
    wait_until((FOLDER / "gate").exists, "the test opens the gate", within=60)
    write(event)


def home(request: HttpRequest) -> Any:
    return HttpResponse(f"the shop {os.environ['SHOP_APP']}")
