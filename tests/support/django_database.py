"""The address of a test's database, as an entry of Django's DATABASES."""

from typing import Any
from urllib.parse import urlsplit


def django_database(address: str) -> dict[str, Any]:
    """The entry of DATABASES for the address of a test's database."""
    if address.startswith("sqlite:///"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": address.removeprefix("sqlite:///")}
    parts = urlsplit(address)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }
