"""The app of a project: it finds the handlers, and explains mistakes without a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = {
    "manage.py": """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
""",
    "settings.py": """
SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "oncehook.integrations.django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
""",
    "shop/__init__.py": "",
    "shop/webhooks.py": """
from oncehook.integrations.django import inbox
@inbox.on("stripe", "invoice.paid")
def invoice_paid(event): ...
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    for name, text in PROJECT.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def manage(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout + done.stderr


def test_mistake_in_the_setting_is_a_sentence(project: Path) -> None:
    with (project / "settings.py").open("a") as settings:
        settings.write('ONCEHOOK = {"sorces": {}}\n')
    for command in (("check",), ("oncehook", "stats")):
        code, output = manage(project, *command)
        assert code != 0
        assert "sorces is not a setting: did you mean" in output and "Traceback" not in output


def test_handlers_are_found_and_the_schema_is_needed(project: Path) -> None:
    with (project / "settings.py").open("a") as settings:
        settings.write('ONCEHOOK = {"sources": {"stripe": {"secrets": ["whsec_test"]}}}\n')
    code, output = manage(project, "oncehook", "worker")
    assert (code, "run `manage.py migrate`" in output) == (2, True), output
    code, output = manage(project, "shell", "-c", SHOW)
    assert code == 0 and "shop.webhooks.invoice_paid" in output, output


SHOW = "from oncehook.integrations.django import inbox; print([h.name for h in inbox._runtime.handlers])"
