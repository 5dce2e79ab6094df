"""Measures the events page with ten thousand and with a million receipts: `python -m bench.events`.

The benchmark starts a private PostgreSQL and the real service, and requests whole pages over HTTP. The goal: a page
with a hundred times as many receipts takes no longer. Compare only the ratios, because machines differ.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

from oncehook.web.auth import hash_token
from tests.support.serve import Process, write_config
from tests.support.servers import Postgres, run_sql

SIZES = (10_000, 1_000_000)
ROUNDS = 25
PAGES = {
    "the first page": "/events",
    "a page far back": "/events?until={middle}",
    "one source": "/events?source=stripe",
    "a rare type": "/events?type=rare.event&since=1h",
    "one object": "/events?object=in_777",
    "dead letters": "/events?status=failed",
    "search by event id": "/api/events?search=evt_5000&since=1h",
    "one event": "/events/50",
    "the overview": "/?range=1h",
}

FILL = """
INSERT INTO webhook_receipts
    (id, source, provider, event_id, type, object_id, received_at, status, fingerprint, attempts)
SELECT i, (ARRAY['stripe', 'github', 'shopify'])[1 + i % 3], 'stripe', 'evt_' || i,
       CASE WHEN i % 9973 = 0 THEN 'rare.event' ELSE 'invoice.paid' END, 'in_' || (i / 4),
       now() - ({size} - i) * interval '2592000 seconds' / {size},
       CASE WHEN i % 2000 = 0 THEN 'failed' ELSE 'processed' END, '\\x00', 1
FROM generate_series(1, {size}) AS g (i);
"""


def main() -> None:
    sizes = tuple(map(int, sys.argv[1:])) or SIZES
    with tempfile.TemporaryDirectory(prefix="oncehook-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        server = Postgres(folder / "cluster").start()
        try:
            report({size: measure(server, folder, size) for size in sizes})
        finally:
            server.stop()


def measure(server: Postgres, folder: Path, size: int) -> dict[str, float]:
    """The median duration of each page in milliseconds."""
    database = server.database()
    config = write_config(folder, database, 'log_level = "error"')
    with config.open("a") as file:
        file.write(f'[dashboard.tokens.bench]\ntoken = "{hash_token("bench")}"\n')
    service = Process(config, "--no-worker")
    try:
        run_sql(database, FILL.format(size=size))
        run_sql(database, "ANALYZE")
        middle = run_sql(database, "SELECT to_char(now() - interval '15 days', 'YYYY-MM-DD')")[0][0]
        headers = {"authorization": "Bearer bench"}
        with httpx.Client(base_url=f"http://127.0.0.1:{service.port}", headers=headers, timeout=60) as client:
            return {name: median(client, path.format(middle=middle)) for name, path in PAGES.items()}
    finally:
        service.kill()


def median(client: httpx.Client, path: str) -> float:
    durations = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        assert client.get(path).status_code == 200, path
        durations.append((time.perf_counter() - started) * 1000)
    return statistics.median(durations)


def report(results: dict[int, dict[str, float]]) -> None:
    small, *_, large = results
    print(f"{'page':<26}{small:>12,}{large:>12,}   ratio")
    for name in PAGES:
        few, many = results[small][name], results[large][name]
        print(f"{name:<26}{few:>9.1f} ms{many:>9.1f} ms   {many / few:.2f}")


if __name__ == "__main__":
    main()
