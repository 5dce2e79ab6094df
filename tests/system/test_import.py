"""`import oncehook` loads what every inbox needs, and nothing that only some inboxes use."""

import subprocess
import sys

import pytest

MAX_OTHER_MODULES = 200
"""Modules of others in `sys.modules` afterwards, with the interpreter's. CPU time follows from it and is not steady."""

MAX_OWN_MODULES = 220
"""Modules of Oncehook. They are small: how the code is divided into files may grow, what it imports may not."""

UNNEEDED = {
    "alembic": "Alembic's integration",
    "asyncpg": "a PostgreSQL database",
    "click": "the command line",
    "cryptography": "a provider with asymmetric signatures, or a key ring",
    "difflib": "a mistake in the configuration",
    "django": "nothing: the inbox only notices it",
    "email": "an alert by mail, or a date in Retry-After",
    "http": "nothing: the HTTP client is our own",
    "importlib.resources": "nothing: files of the package are found by their path",
    "jinja2": "the dashboard",
    "opentelemetry": "an app that sets up tracing",
    "prometheus_client": "the first scrape",
    "rich": "the command line",
    "smtplib": "an alert by mail",
    "sqlalchemy": "an inbox with an engine",
    "sqlite3": "a SQLite database",
    "starlette": "the dashboard and the API",
    "structlog": "the service's log",
    "tempfile": "nothing",
    "tomllib": "a configuration file",
    "uvicorn": "the service",
    "uvloop": "the service",
    "xml": "Braintree's events",
}
"""Module → what needs it."""


@pytest.fixture(scope="module")
def imported() -> set[str]:
    code = "import oncehook, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("name", UNNEEDED)
def test_import_leaves_out_modules_that_only_some_inboxes_need(name: str, imported: set[str]) -> None:
    found = sorted(module for module in imported if module == name or module.startswith(f"{name}."))
    assert found == [], f"import it inside the function that needs it ({UNNEEDED[name]})"


def test_import_loads_a_bounded_number_of_modules(imported: set[str]) -> None:
    own = {name for name in imported if name.partition(".")[0] == "oncehook"}
    assert "oncehook.inbox" in own
    assert len(imported - own) <= MAX_OTHER_MODULES
    assert len(own) <= MAX_OWN_MODULES
