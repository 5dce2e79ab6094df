"""Inboxes whose Stripe source forwards to an HTTP target."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from oncehook import Inbox


def write_config(
    folder: Path, database: str, url: str, *lines: str, source: str = "stripe", secret: str = "whsec_test"
) -> Path:
    """Write a configuration with one source, which forwards to `url`. `lines` are further keys of the source."""
    config = folder / "oncehook.toml"
    settings = [
        f'database = "{database}"',
        'lease = "1s"',
        'poll = "50ms"',
        f"[sources.{source}]",
        f'secrets = ["{secret}"]',
        f'forward = "{url}"',
    ]
    config.write_text("\n".join([*settings, *lines]) + "\n")
    return config


@asynccontextmanager
async def running_inbox(config: Path) -> AsyncIterator[Inbox]:
    """A running inbox without a worker."""
    inbox = Inbox(config=str(config), worker=False)
    async with inbox.lifespan():
        yield inbox
