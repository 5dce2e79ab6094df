"""The inbox of a Django project, on each kind of database in turn."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from tests.support.django_project import create_tables, using_database


@pytest.fixture
def django_inbox(database: str) -> Any:
    """The inbox of the project, not started, with the tables of the shop."""
    with using_database(database) as inbox:
        create_tables()
        yield inbox


@pytest.fixture
async def inbox(django_inbox: Any) -> AsyncIterator[Any]:
    """The inbox of the project, started, without a worker."""
    async with django_inbox.lifespan():
        yield django_inbox
    await sync_to_async(lambda: None)()
