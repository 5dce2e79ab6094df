"""Fixtures for the tests of forwards."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.support.forwarding import write_config


@pytest.fixture
def forward_config(tmp_path: Path, database: str) -> Callable[..., Path]:
    """Write a configuration whose Stripe source forwards to an address."""
    return partial(write_config, tmp_path, database)
