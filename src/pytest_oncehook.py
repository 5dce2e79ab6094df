"""The pytest fixtures of Oncehook, found by pytest through the entry point `pytest11`; docs/testing.md explains them.

A module beside the package: pytest imports it in every run, also in those that have nothing to do with webhooks, so it
must not bring the package along. It needs nothing but pytest; an async test needs its own plugin, as always.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from oncehook import Inbox
    from oncehook.testing import Bench


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("oncehook")
    group.addoption(
        "--oncehook-postgres",
        metavar="URL",
        help="give each test a database of its own on this PostgreSQL server, not a SQLite file",
    )
    parser.addini("oncehook_inbox", "the inbox under test, as module:name")
    parser.addini("oncehook_postgres", "as --oncehook-postgres")


@pytest.fixture
def oncehook_database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an empty database of this test alone: make your own tables in it."""
    server: str = request.config.getoption("--oncehook-postgres") or request.config.getini("oncehook_postgres")
    if not server:
        yield f"sqlite:///{tmp_path_factory.mktemp('oncehook') / 'inbox.db'}"
        return
    from oncehook.testing.database import fresh_database

    with fresh_database(server) as address:
        yield address


@pytest.fixture
def oncehook_app(request: pytest.FixtureRequest) -> Inbox:
    """Your inbox: `oncehook_inbox` in pytest's configuration, or `app` in oncehook.toml. Override this fixture to give
    it otherwise."""
    from importlib import import_module

    from oncehook import Inbox
    from oncehook.config.configuration import load

    named: str = request.config.getini("oncehook_inbox") or load().settings.app or ""
    module, _, name = named.partition(":")
    if not module or not name:
        pytest.fail(
            'no inbox to test: set oncehook_inbox = "module:name" in pytest\'s configuration, or app in oncehook.toml, '
            "or define a fixture oncehook_app that returns your Inbox",
            pytrace=False,
        )
    inbox = getattr(import_module(module), name, None)
    if not isinstance(inbox, Inbox):
        pytest.fail(f'oncehook_inbox = "{named}": {module} has no Inbox of the name {name}', pytrace=False)
    return inbox


@pytest.fixture
def oncehook_inbox(oncehook_app: Inbox, oncehook_database: str) -> Inbox:
    """An inbox like yours on this test's database, for async tests: `async with oncehook_inbox.lifespan():`."""
    from oncehook.testing import isolated

    return isolated(oncehook_app, oncehook_database)


@pytest.fixture
def oncehook(oncehook_inbox: Inbox) -> Iterator[Bench]:
    """The same at work, for tests that are plain functions: `oncehook.deliver(…)`, `oncehook.drain()`."""
    from oncehook.testing import Bench

    with Bench(oncehook_inbox) as bench:
        yield bench
