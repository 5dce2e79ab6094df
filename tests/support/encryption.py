"""Inboxes with an encrypted source, and everything that a database holds, as an attacker reads it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from oncehook import Inbox
from tests.support.events import STRIPE_SECRET
from tests.support.servers import run_sql

KEYS = {
    "2026a": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
    "2026b": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
    "2026c": "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI=",
}


def ring(*ids: str) -> list[str]:
    """Entries of the setting `keys`."""
    return [f"{id}:{KEYS[id]}" for id in ids]


def encrypted_inbox(make_inbox: Callable[..., Inbox], *ids: str, **options: Any) -> Inbox:
    """An inbox with these keys, whose Stripe source is encrypted and whose GitHub source is not."""
    inbox = make_inbox(keys=ring(*ids or ("2026a",)))
    inbox.source("stripe", secrets=[STRIPE_SECRET], encrypt=True, **options)
    inbox.source("github", secrets=["github-secret"])
    return inbox


def assert_stored_nowhere(database: str, *secrets: str) -> None:
    """Fail if a value of any table, or the raw bytes of a SQLite database with its WAL, contain one of the texts."""
    found = {(secret, place) for place, data in _everything(database) for secret in secrets if secret.encode() in data}
    assert found == set(), "a text of an encrypted event is readable in the database"


def stored_somewhere(database: str, text: str) -> set[str]:
    """The places in the database where the text is readable."""
    return {place for place, data in _everything(database) if text.encode() in data}


def _everything(database: str) -> Iterator[tuple[str, bytes]]:
    sqlite = database.startswith("sqlite:")
    listed = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    if sqlite:
        listed = "SELECT name FROM sqlite_master WHERE type = 'table'"
    for (table,) in run_sql(database, listed):
        for row in run_sql(database, f"SELECT * FROM {table}"):
            for value in row:
                yield table, value if isinstance(value, bytes) else str(value).encode()
    if sqlite:
        path = Path(database.removeprefix("sqlite:///"))
        for file in path.parent.glob(f"{path.name}*"):
            yield file.name, file.read_bytes()
