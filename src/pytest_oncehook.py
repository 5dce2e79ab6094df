"""The pytest fixtures of Oncehook, which pytest loads through the entry point `pytest11`. See docs/testing.md.

pytest imports this module in every run, even for tests without webhooks. So it is outside of the package and imports
`oncehook` only inside the fixtures. Async tests also need a plugin such as pytest-asyncio or anyio.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oncehook import Inbox
    from oncehook.integrations.django.testing import DjangoBench
    from oncehook.testing import Bench


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("oncehook")
    group.addoption(
        "--oncehook-postgres",
        metavar="URL",
        help="create a new database for each test on this PostgreSQL server, instead of a SQLite file",
    )
    parser.addini("oncehook_inbox", "the inbox under test, as module:name")
    parser.addini("oncehook_postgres", "the default of --oncehook-postgres")


@pytest.fixture
def oncehook_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty database for this test. Create your own tables in it."""
    server: str = request.config.getoption("--oncehook-postgres") or request.config.getini("oncehook_postgres")
    if not server:
        yield f"sqlite:///{tmp_path_factory.mktemp('oncehook') / 'inbox.db'}"
        return
    from oncehook.testing.database import fresh_database

    with fresh_database(server) as address:
        yield address


@pytest.fixture
def oncehook_app(request: pytest.FixtureRequest) -> Inbox:
    """Your inbox, from `oncehook_inbox` in pytest's configuration or `app` in oncehook.toml.

    Override this fixture to return your inbox in another way.
    """
    from importlib import import_module

    from oncehook import Inbox
    from oncehook.config.configuration import load

    setting: str = request.config.getini("oncehook_inbox") or load().settings.app or ""
    module, _, name = setting.partition(":")
    if not module or not name:
        pytest.fail(
            'no inbox to test: set oncehook_inbox = "module:name" in pytest\'s configuration, or app in oncehook.toml, '
            "or define a fixture oncehook_app that returns your Inbox",
            pytrace=False,
        )
    inbox = getattr(import_module(module), name, None)
    if not isinstance(inbox, Inbox):
        pytest.fail(f'oncehook_inbox = "{setting}": {module} has no Inbox named {name}', pytrace=False)
    return inbox


@pytest.fixture
def oncehook_inbox(oncehook_app: Inbox, oncehook_database: str) -> Inbox:
    """A copy of your inbox on this test's database, for async tests.

    async with oncehook_inbox.lifespan():
        response = await deliver(oncehook_inbox, "stripe", type="invoice.paid")
    """
    from oncehook.testing import isolated

    return isolated(oncehook_app, oncehook_database)


@pytest.fixture
def oncehook(oncehook_inbox: Inbox) -> Iterator[Bench]:
    """A running copy of your inbox on this test's database, for synchronous tests.

    def test_paid_invoice(oncehook: Bench) -> None:
        oncehook.deliver("stripe", type="invoice.paid")
        (receipt,) = oncehook.drain()
        assert receipt.status == "processed"
    """
    from oncehook.testing import Bench

    with Bench(oncehook_inbox) as bench:
        yield bench


@pytest.fixture
def django_webhooks(request: pytest.FixtureRequest) -> Iterator[DjangoBench]:
    """A running copy of a Django project's inbox, for tests with pytest-django's marker `django_db`.

    @pytest.mark.django_db
    def test_paid_invoice(django_webhooks: DjangoBench) -> None:
        django_webhooks.deliver("stripe", type="invoice.paid")
        django_webhooks.drain()
    """
    fixture = next((name for name in ("transactional_db", "db") if name in request.fixturenames), None)
    if fixture is not None:
        request.getfixturevalue(fixture)
    elif request.node.get_closest_marker("django_db") is None:
        pytest.fail("django_webhooks needs the database: add @pytest.mark.django_db to the test", pytrace=False)
    from oncehook.integrations.django.testing import webhooks

    with webhooks() as bench:
        yield bench
