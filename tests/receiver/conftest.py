"""Fixtures for the tests of the receiver."""

import pytest

from oncehook import Inbox
from tests.support.wsgi import call_through_wsgi


@pytest.fixture(params=["asgi", "wsgi"])
def adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way in which deliveries reach the receiver: its answers are the same through each adapter."""
    if request.param == "wsgi":
        monkeypatch.setattr(Inbox, "__call__", call_through_wsgi)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Use WSGI on SQLite only: the adapter does not see the database."""
    items[:] = [item for item in items if not {"wsgi", "postgres"} <= set(parameters(item))]


def parameters(item: pytest.Item) -> list[str]:
    """The adapter and the database of a test, if it has both."""
    values: dict[str, str] = item.callspec.params if hasattr(item, "callspec") else {}
    return [values[name] for name in ("adapter", "database") if name in values]
