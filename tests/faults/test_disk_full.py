"""A full disk: events that cannot be recorded get 503, never 2xx, and the service recovers."""

import resource
from pathlib import Path

import httpx
import pytest

from tests.support.events import stripe_body, stripe_headers
from tests.support.serve import process, write_config
from tests.support.servers import run_sql

KEPT = "SELECT event_id, body FROM webhook_receipts r JOIN webhook_payloads ON receipt_id = r.id"


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="only Linux can limit the files of a running process")
def test_full_disk_loses_no_acked_event(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'inbox.db'}"
    acked: dict[str, bytes] = {}

    def post(client: httpx.Client, event_id: str) -> int:
        body = stripe_body(event_id, filler="x" * 20_000)
        answer = client.post("/webhooks/stripe", content=body, headers=stripe_headers(body))
        if answer.is_success:
            acked[event_id] = body
        else:
            assert answer.json()["error"]["code"] == "unavailable" and answer.headers["retry-after"]
        return answer.status_code

    config = write_config(tmp_path, database)
    with (
        process(config) as service,
        httpx.Client(verify=False, base_url=f"http://127.0.0.1:{service.port}", timeout=20) as client,
    ):
        assert post(client, "before") == 202
        pid, limits = service.process.pid, resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
        largest = max(file.stat().st_size for file in tmp_path.glob("inbox.db*"))
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest + 200_000, limits[1]))
        statuses = [post(client, f"evt_{number}") for number in range(20)]
        assert set(statuses) == {202, 503} and statuses[-1] == 503
        assert client.get("/healthz").status_code == 200
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        assert post(client, "evt_19") == 202
        assert service.end() == 0
    stored = dict(run_sql(database, KEPT))
    assert stored == acked
    assert run_sql(database, "PRAGMA integrity_check") == [("ok",)]
