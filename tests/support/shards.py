"""Inboxes with several shards, each with its own database, and conditions on all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oncehook import Inbox
from oncehook.config.configuration import Configuration, load
from oncehook.store.federation import FederatedStore
from tests.support.events import STRIPE_SECRET, stripe_body, stripe_headers
from tests.support.servers import Postgres, run_sql

LEDGER = "CREATE TABLE ledger (event_id text PRIMARY KEY, note text)"


class ShardDatabases:
    """The addresses of the databases of `main` and of the shards `a` and `b`, and a configuration for them."""

    def __init__(self, server: Postgres, folder: Path, *names: str) -> None:
        self.addresses = {name: server.database(migrated=True) for name in ("main", *names)}
        self.folder = folder

    def write(self, **tables: str) -> Path:
        """Write a configuration: a shard `NAME` has the lines `tables[NAME]`; `sources` and `top` are other lines."""
        lines = [f'database = "{self.addresses["main"]}"', 'poll = "50ms"', tables.pop("top", "")]
        lines.append(tables.pop("sources", ""))
        for name, address in self.addresses.items():
            if name != "main":
                lines += [f"[shards.{name}]", f'database = "{address}"', tables.pop(name, "")]
        assert not tables, tables
        file = self.folder / "oncehook.toml"
        file.write_text("\n".join(lines) + "\n")
        return file

    def configuration(self, **tables: str) -> Configuration:
        return load(self.write(**tables), {})

    def rows(self, shard: str, sql: str) -> list[tuple[Any, ...]]:
        return run_sql(self.addresses[shard], sql)

    def create_ledgers(self) -> None:
        """Create the table that handlers write, in every shard."""
        for address in self.addresses.values():
            run_sql(address, LEDGER)

    def events(self, shard: str) -> list[str]:
        """The event ids of `main` receipts in a shard, sorted."""
        sql = "SELECT event_id FROM webhook_receipts WHERE consumer = 'main' ORDER BY event_id"
        return [row[0] for row in self.rows(shard, sql)]


@contextmanager
def shard_databases(server: Postgres, folder: Path, *names: str) -> Iterator[ShardDatabases]:
    """Databases for one test. They are dropped at its end."""
    databases = ShardDatabases(server, folder, *names)
    try:
        yield databases
    finally:
        for address in databases.addresses.values():
            server.drop_later(address)


def stripe_sources(*names: str, extra: str = "") -> str:
    """The configuration of Stripe sources."""
    return "\n".join(f'[sources.{name}]\nprovider = "stripe"\nsecrets = ["{STRIPE_SECRET}"]\n{extra}' for name in names)


async def post(inbox: Inbox, path: str, event_id: str, **more: Any) -> int:
    """Deliver an event to `/<path>`, and return the status code."""
    body = stripe_body(event_id, **more)
    return (await post_body(inbox, path, body, stripe_headers(body)))[0]


async def post_body(inbox: Inbox, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
    """POST a body through the ASGI interface of an inbox."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": f"/{path}",
        "root_path": "",
        "scheme": "http",
        "query_string": b"",
        "headers": [*raw, (b"host", b"test"), (b"content-length", str(len(body)).encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await inbox(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def federation_of(inbox: Inbox) -> FederatedStore:
    """The store over all shards of an inbox."""
    store = inbox._runtime.all_shards
    assert isinstance(store, FederatedStore)
    return store
