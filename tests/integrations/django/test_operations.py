"""Operations for synchronous code, next to a running inbox and without one."""

from typing import Any

import pytest

from oncehook.integrations.django import operations
from oncehook.testing import Bench
from tests.support.events import Rows


@pytest.mark.parametrize("runs", [True, False])
def test_operations_work_whether_or_not_the_inbox_runs(django_inbox: Any, rows: Rows, runs: bool) -> None:
    @django_inbox.on("stripe", "*")
    def handle(event: Any) -> None: ...

    with Bench(django_inbox) as bench:
        bench.deliver("stripe", {"id": "evt_1", "type": "invoice.paid"})
        (receipt,) = bench.drain()
    if runs:
        django_inbox.wsgi.start()
    try:
        payload = operations.read_payload(receipt.receipt)
        assert payload is not None and payload.body == b'{"id":"evt_1","type":"invoice.paid"}'
        assert [rehearsal.error for rehearsal in operations.rehearse([receipt.receipt])] == [None]
        assert operations.replay([receipt.receipt], actor="a test").count == 1
    finally:
        django_inbox.wsgi.stop()
    assert rows("SELECT replays FROM webhook_receipts") == [(1,)]
