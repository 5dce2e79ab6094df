"""With Django: the start warns that its ORM is not part of a handler's transaction, but only if it has a database."""

import subprocess
import sys
from pathlib import Path

import pytest

SHOP = """
import asyncio, logging, sys
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
{django}
from oncehook import Inbox

inbox = Inbox("sqlite:///inbox.db", worker=False)
inbox.source("stripe", secrets=["whsec_test"])
{handler}

async def main():
    async with inbox.lifespan():
        pass

asyncio.run(main())
"""
WITH_DATABASE = """
import django
from django.conf import settings
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.db"}})
django.setup()
"""
WITHOUT_DATABASE = """
import django
from django.conf import settings
settings.configure()
django.setup()
"""
HANDLER = "@inbox.on('stripe', '*')\ndef handle(event): ..."
WARNED = "django_orm_not_transactional: add oncehook.integrations.django to INSTALLED_APPS\n"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("django", "handler", "output"),
    [
        (WITH_DATABASE, HANDLER, WARNED),
        (WITH_DATABASE, "", ""),
        (WITHOUT_DATABASE, HANDLER, ""),
        ("from django.conf import settings", HANDLER, ""),
        ("", HANDLER, ""),
    ],
    ids=["a database", "no handler", "no database", "not set up", "no Django"],
)
def test_start_warns_that_the_django_orm_is_not_in_the_transaction(
    tmp_path: Path, django: str, handler: str, output: str
) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(django=django, handler=handler))
    done = subprocess.run([sys.executable, "shop.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", output)
