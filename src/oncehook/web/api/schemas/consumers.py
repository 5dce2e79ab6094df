"""Consumers in requests and responses."""

from typing import Any

from msgspec import Struct

from oncehook.web.api.schemas.sources import Pause


class ConsumerState(Struct):
    """A consumer: its subscriptions, its settings and its work, across all processes.

    `sources` has the type patterns of each source. `forward` is the origin of its target. `rate` is in events per
    second. `seen_at` is when a process last registered it; it is null for `main`.
    """

    consumer: str
    waiting: int
    unhandled: int
    dead_letters: int
    lag_seconds: float
    oldest_unfinished_seconds: float
    paused: Pause | None
    sources: dict[str, list[str]]
    types: list[str] | None
    where: dict[str, Any] | None
    forward: str | None
    rate: float | None
    concurrency: int | None
    processes: list[str]
    seen_at: str | None


class Consumers(Struct):
    """Every consumer, `main` first."""

    consumers: list[ConsumerState]


class ConsumerPauseState(Struct):
    """Whether a consumer is paused now."""

    consumer: str
    paused: bool
