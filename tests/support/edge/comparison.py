"""Sends connections to two inboxes, one with its fast paths and one without, and compares answers and rows."""

import asyncio
import json
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from oncehook import Inbox
from oncehook.cli.serve import Server, make_server
from tests.support.edge.deliveries import add_sources
from tests.support.edge.grammar import Connection
from tests.support.edge.wire import Answer, Wire, read_answers
from tests.support.servers import sqlite_file

RECEIPT = re.compile(rb'"receipt": ?(\d+)')
ROWS = """
SELECT source, tenant, event_id, type, object_id, delivery_id, correlation_id, status, last_error, hex(fingerprint),
  p.body, p.headers, (SELECT count(*) FROM webhook_deliveries AS d WHERE d.receipt_id = r.id)
FROM webhook_receipts AS r LEFT JOIN webhook_payloads AS p ON p.receipt_id = r.id
"""
NAMED = re.compile(r"c\d+-\d+-")


@dataclass
class Difference:
    """What two servers did differently with the same bytes, or a rule that one of them broke."""

    connection: Connection
    what: str


@dataclass
class Pair:
    """Two running inboxes and their servers."""

    servers: tuple[Server, Server]
    files: tuple[Path, Path]
    answers: Counter[str] = field(default_factory=Counter)
    receipts: tuple[dict[int, str], dict[int, str]] = field(default_factory=lambda: ({}, {}))

    async def compare(self, connection: Connection) -> Difference | None:
        written = await asyncio.gather(*(Wire(server).send(connection) for server in self.servers))
        fast, plain = (
            [self._normal(answer, side) for answer in read_answers(each)]
            for each, side in zip(written, self.receipts, strict=True)
        )
        self.answers.update(status for status, *_ in fast)
        if fast != plain and not connection.aborts:
            return Difference(connection, f"fast:  {fast}\nplain: {plain}")
        for status, *_ in fast + plain:
            if status in ("no HTTP", "incomplete") or status.startswith("HTTP/1.1 5"):
                return Difference(connection, f"a server error: {fast}")
        return None

    def _normal(self, answer: Answer, receipts: dict[int, str]) -> Answer:
        """The answer without what may differ: receipt numbers, and which of two equal bodies without an id is first."""
        status, headers, body = answer
        found = RECEIPT.search(body)
        if found is None:
            return answer
        event_id = str(json.loads(body).get("event_id"))
        receipts[int(found[1])] = event_id
        headers = tuple(line for line in headers if line != f"content-length: {len(body)}")
        body = RECEIPT.sub(b'"receipt":0', body)
        if NAMED.match(event_id):
            return status, headers, body
        return "HTTP/1.1 2xx", headers, re.sub(rb'"(accepted|duplicate)"', b'"recorded"', body)


@asynccontextmanager
async def running_pair(folder: Path) -> AsyncIterator[Pair]:
    """Two inboxes with the same sources, each on its own SQLite file."""
    files = folder / "fast.db", folder / "plain.db"
    inboxes = [
        add_sources(Inbox(sqlite_file(file), worker=False, fast_paths=fast))
        for file, fast in zip(files, (True, False), strict=True)
    ]
    servers = [make_server(inbox) for inbox in inboxes]
    for server in servers:
        server.config.timeout_keep_alive = 600  # a slow machine must not close one of two connections
        server.config.load()
    async with inboxes[0].lifespan(), inboxes[1].lifespan():
        yield Pair((servers[0], servers[1]), files)


async def compare_answers(pair: Pair, connections: Sequence[Connection]) -> list[Difference]:
    """Send all connections at once to both servers."""
    compared = await asyncio.gather(*map(pair.compare, connections))
    return [difference for difference in compared if difference is not None]


def compare_rows(pair: Pair, connections: Sequence[Connection]) -> list[Difference]:
    """Compare the rows of two inboxes that have stopped, and their receipts with the answers."""
    by_name = {connection.name: connection for connection in connections}
    by_body = {digest: connection for connection in connections for digest in connection.authentic}
    first, sides, differences = connections[0], [_rows(file) for file in pair.files], []
    for key in sorted(sides[0].keys() | sides[1].keys()):
        fast, plain = (side.get(key) for side in sides)
        body = (fast or plain or [b""])[0]
        found = NAMED.match(key[2])
        connection = by_name.get(found[0]) if found else by_body.get(body)
        if connection is None and key[0] == "open":
            continue  # the beginning of a body, which several connections may have sent
        if fast != plain and not (connection and connection.aborts):
            differences.append(Difference(connection or first, f"rows of {key}\nfast:  {fast}\nplain: {plain}"))
        if key[0] != "open" and body not in by_body:
            differences.append(Difference(connection or first, f"{key} is stored, and its body was not signed"))
    for file, answered in zip(pair.files, pair.receipts, strict=True):
        with closing(sqlite3.connect(file)) as database:
            stored = dict(database.execute("SELECT id, event_id FROM webhook_receipts"))
        wrong = {receipt for receipt, event_id in answered.items() if stored.get(receipt) != event_id}
        if wrong:
            differences.append(Difference(first, f"answers in {file.name} name receipts of other events: {wrong}"))
    return differences


def _rows(file: Path) -> dict[tuple[str, str, str], Any]:
    """The source, tenant and id of each event → the digest of its body, and its other columns."""
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute(ROWS).fetchall()
    return {
        (row[0], row[1], row[2]): (sha256(row[10]).digest(), *(row[3:] if NAMED.match(row[2]) else row[3:10]))
        for row in rows
    }
