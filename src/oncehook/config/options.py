"""The keyword arguments of `Inbox(…)`, `inbox.source(…)` and `inbox.consumer(…)`, with their types.

Each key is a field of `Settings`, `SourceSettings` or `ConsumerSettings`, which describe its meaning. A test compares
them. `effect_targets` is not here, because it cannot be set in code.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from oncehook.model.retry import Retry
from oncehook.model.tenant import TenantLimits
from oncehook.model.values import Duration, Size


class InboxOptions(TypedDict, total=False):
    """The settings of an inbox, as keyword arguments of `Inbox(…)`."""

    app: str
    max_body: Size
    receive_timeout: Duration
    claim_timeout: Duration
    intake_limit: int
    intake_bytes: Size
    trusted_proxies: Sequence[str]
    migrate: Literal["auto", "never"]
    unsafe_durability: bool
    concurrency: int
    lease: Duration
    read_database: str | None
    read_max_lag: Duration
    stop_grace: Duration
    drain_delay: Duration
    poll: Duration
    notify: bool
    queue: str
    pooler: Literal["auto", "none", "transaction"]
    clean_sessions: bool
    dedupe_window: Duration
    payload_retention: Duration
    payload_store: str
    payload_threshold: Size
    payload_fallback: Literal["database", "reject"]
    keys: Sequence[str]
    effect_retention: Duration
    email_retention: Duration
    email_suppress: Sequence[str]
    email_soft_bounces: int
    email_case_sensitive: bool
    version: str
    metrics_token: str
    fast_paths: bool
    duplicate_cache: Size
    redis: str
    spool: str
    spool_limit: Size
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["auto", "json", "console"]


class RetryOptions(TypedDict, total=False):
    """Some fields of a `Retry`, as in `retry = { attempts = 5, first = "2s" }`."""

    attempts: int
    first: Duration
    factor: float
    most: Duration


class TenantOptions(TypedDict, total=False):
    """The limits of a source with tenants, as in `tenants = { cache = 10000, ttl = "1m" }`."""

    cache: int
    ttl: Duration
    stale: Duration
    timeout: Duration
    lookups: str
    rate: str


class SourceOptions(TypedDict, total=False):
    """The settings of a source, as keyword arguments of `inbox.source(…)`."""

    provider: str
    tenants: bool | TenantLimits | TenantOptions
    verify: Literal["signature", "none"]
    types: Sequence[str]
    where: Mapping[str, object]
    mode: Literal["queued", "inline"]
    on_failure: Literal["retry", "dead_letter"]
    unhandled: Literal["wait", "ignore"]
    max_attempts: int
    retry: Retry | RetryOptions | Mapping[str, object]
    timeout: Duration
    max_body: Size
    spool: bool
    tolerance: Duration
    dedupe_window: Duration
    payload_retention: Duration
    encrypt: bool
    correlation: str
    id: str | Sequence[str]
    forward: str
    forward_secret: str | Sequence[str]
    forward_timeout: Duration
    forward_concurrency: int
    forward_headers: Sequence[str]
    serial_by: str | Sequence[str]
    serial_failed: Literal["block", "skip"]
    email: bool
    intake: str
    intake_format: Literal["oncehook", "http", "sns", "eventbridge"]
    intake_trust: Literal["queue", "topic"]
    topics: Sequence[str]
    public_url: str
    webhook_id: str
    verify_token: str
    app_id: str
    sandbox: bool


class ConsumerOptions(TypedDict, total=False):
    """The settings of a consumer, as keyword arguments of `inbox.consumer(…)`."""

    sources: Sequence[str]
    types: Sequence[str]
    where: Mapping[str, object]
    forward: str
    forward_secret: str | Sequence[str]
    forward_timeout: Duration
    forward_headers: Sequence[str]
    concurrency: int
    rate: str
    max_attempts: int
    retry: Retry | RetryOptions | Mapping[str, object]
    timeout: Duration
    paused: bool
