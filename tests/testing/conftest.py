"""Fixtures for the tests of oncehook.testing."""

from collections.abc import AsyncIterator, Callable

import pytest

from oncehook import Inbox


@pytest.fixture
async def inbox(make_inbox: Callable[..., Inbox]) -> AsyncIterator[Inbox]:
    """A started inbox with two sources and no worker."""
    inbox = make_inbox(lease="30s")
    inbox.source("stripe", secrets=["whsec_old", "whsec_new"])
    inbox.source("github", secrets=["github-secret"])
    async with inbox.lifespan():
        yield inbox
