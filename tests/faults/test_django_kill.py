"""A worker of a Django project that is killed in a handler leaves no write, and the event is handled again."""

import pytest

from tests.faults import django_worker
from tests.support.django_project import create_tables, using_database
from tests.support.servers import run_sql
from tests.support.waiting import eventually
from tests.support.work import claim
from tests.support.worker_process import WorkerProcess

pytestmark = pytest.mark.anyio

NUMBERS = "SELECT number FROM django_shop_invoice ORDER BY number"


@pytest.mark.rest
async def test_worker_that_is_killed_in_a_handler_leaves_no_write(database: str) -> None:
    with using_database(database) as inbox:
        create_tables()
        async with inbox.lifespan():
            await claim(inbox, "evt_1")
    module = django_worker.__name__
    killed = WorkerProcess(database, "kill", module=module)
    await eventually(lambda: killed.has_ended, "the worker is killed in its handler", within=60)
    killed.end()
    assert run_sql(database, NUMBERS) == []
    assert run_sql(database, "SELECT status FROM webhook_receipts") == [("processing",)]
    worker = WorkerProcess(database, module=module)
    try:
        status = "SELECT status FROM webhook_receipts"
        await eventually(lambda: run_sql(database, status) == [("processed",)], "it is handled again", within=60)
    finally:
        worker.end()
    assert run_sql(database, NUMBERS) == [("evt_1-2",), ("evt_1-2-in-a-savepoint",)]
