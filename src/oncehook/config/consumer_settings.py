"""The settings of a consumer, each with its default, parser and description: the keys under `[consumers.NAME]`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oncehook.config.setting import setting
from oncehook.model.retry import retry_fields
from oncehook.model.values import boolean, conditions, duration, locators, positive, rate, text, texts, whole_number

CONSUMER_SLOTS = 8
"""Default slots of a consumer. On PostgreSQL, each slot can have a connection."""


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """The settings of one consumer: the keys under `[consumers.NAME]`."""

    sources: tuple[str, ...] | None = setting(
        None,
        texts,
        "The sources that it subscribes to. Absent: those of its handlers; with a `forward`, all.",
    )
    types: tuple[str, ...] | None = setting(
        None,
        texts,
        "Allow-list of types, as for a source. An event of another type is `ignored` for this consumer. Absent: all.",
    )
    where: Mapping[str, Any] | None = setting(
        None,
        conditions,
        "Conditions on the payload, as for a source. An event that does not meet them is `ignored` for this consumer. "
        "See [filters](filters.md).",
    )
    forward: str | None = setting(
        None,
        text,
        "The HTTP address or the [broker](brokers.md) that handles its events, instead of code. See "
        "[forwarding](forwarding.md).",
    )
    forward_secret: tuple[str, ...] = setting(
        (), locators, "One or more secrets that sign forwarded requests: `env:NAME`, `file:PATH` or the value."
    )
    forward_timeout: float | None = setting(
        None, positive(duration), "How long one forwarded request may take in total. Absent: `timeout`, else 15s."
    )
    forward_headers: tuple[str, ...] | None = setting(
        None, texts, "Headers of the delivery that are forwarded (shell patterns), as for a source."
    )
    concurrency: int | None = setting(
        None,
        positive(whole_number),
        "How many of its events a worker process handles at the same time. It has these slots for itself. Absent: 8, "
        "or the inbox's `concurrency` if that is smaller.",
    )
    rate: float | None = setting(
        None,
        rate,
        "How many attempts all processes together start, such as `50/s`, `100/m` or `3000/h`. Absent: no limit.",
    )
    max_attempts: int | None = setting(
        None, positive(whole_number), "After this many failed attempts, its receipt becomes a dead letter."
    )
    retry: Mapping[str, Any] | None = setting(
        None,
        retry_fields,
        "The retry policy. It overrides that of a source, and a handler's own `retry=` overrides it.",
    )
    timeout: float | None = setting(
        None, positive(duration), "How long one attempt may take. A handler's own `timeout=` overrides it."
    )
    paused: bool = setting(
        False,
        boolean,
        "Pauses the consumer when the setting appears, and resumes it when it is removed. A person can resume it.",
    )
