"""Fixtures for the tests of handlers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.events import Rows
from tests.support.forwarding import write_config


@pytest.fixture
def forward_config(tmp_path: Path, database: str) -> Callable[..., Path]:
    """Write a configuration whose Stripe source forwards to an address."""
    return partial(write_config, tmp_path, database)


@pytest.fixture
def subscriptions(rows: Rows) -> None:
    """A table that handlers write to."""
    rows("CREATE TABLE subscriptions (id TEXT PRIMARY KEY, status TEXT)")
