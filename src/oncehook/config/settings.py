"""All settings, each with its default, parser and description.

The fields of `Settings` are the keys of `oncehook.toml`, the environment variables `ONCEHOOK_<NAME>`, which override
the file, and the rows of docs/settings.md. The fields of `SourceSettings` are the keys under `[sources.NAME]`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oncehook.config.fast_path_settings import FastPathSettings
from oncehook.config.intake_settings import IntakeSettings
from oncehook.config.setting import setting
from oncehook.config.spool_settings import SourceSpoolSettings, SpoolSettings
from oncehook.model.retry import retry_fields
from oncehook.model.tenant import TenantLimits, tenant_limits
from oncehook.model.values import (
    Network,
    address,
    any_of,
    boolean,
    conditions,
    duration,
    locators,
    networks,
    one_of,
    positive,
    queue_address,
    size,
    text,
    texts,
    whole_number,
)


class Default(float):
    """A default duration, which a provider's definition may extend. A duration that the user sets is never changed."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """The retention of a source's receipts and payloads, in seconds. No payload is kept longer than its receipt."""

    source: str
    receipts: float
    payloads: float


@dataclass(frozen=True, kw_only=True)
class Settings(FastPathSettings, SpoolSettings):
    """The settings of an inbox."""

    database: str = setting(
        "sqlite:///oncehook.db", text, "The database of the inbox: `sqlite:///file.db` or `postgresql://user@host/db`."
    )
    app: str | None = setting(
        None,
        text,
        "The `module:variable` of your inbox with its handlers, such as `hooks:inbox`. Every command uses it, unless "
        "an option of the command names another.",
    )
    max_body: int = setting(2**20, positive(size), "The largest body; a larger one gets 413. A source may override it.")
    receive_timeout: float = setting(
        15.0,
        positive(duration),
        "How long a request may take to arrive completely. After that it gets 408, and nothing is stored.",
    )
    claim_timeout: float = setting(
        10.0,
        positive(duration),
        "How long an event may wait for its commit to begin, and then how long the commit may take. After that, the "
        "sender gets 503.",
    )
    intake_limit: int = setting(
        10_000, positive(whole_number), "How many events may wait for their commit. Further ones get 503."
    )
    intake_bytes: int = setting(
        64 * 2**20,
        positive(size),
        "How many bytes of bodies may be arriving, and how many may wait for their commit. Further ones get 503.",
    )
    trusted_proxies: tuple[Network, ...] = setting(
        (),
        networks,
        "Addresses and networks of your proxies, such as `10.0.0.0/8`. Only these machines are trusted to report, in "
        "forwarded headers, the URL that a sender used (for providers that sign it, if the source has no `public_url`) "
        "and the client's address (for sign-ins and the audit log).",
    )
    migrate: str = setting(
        "auto",
        one_of("auto", "never"),
        "`auto` migrates the schema at start; `never` leaves that to `oncehook migrate`.",
    )
    read_database: str | None = setting(
        None,
        text,
        "A PostgreSQL standby for pages that only show data. See [read replica](many-hosts.md#read-replica).",
    )
    read_max_lag: float = setting(
        10.0, duration, "How far `read_database` may be behind. Beyond that, the dashboard reads `database`."
    )
    unsafe_durability: bool = setting(
        False,
        boolean,
        "Start even if PostgreSQL runs with `fsync=off` or `synchronous_commit=off`, where acked events may be lost.",
    )
    concurrency: int = setting(
        16, positive(whole_number), "How many handlers of each consumer a worker runs at the same time."
    )
    lease: float = setting(
        30.0,
        positive(duration),
        "How long after a worker's crash its events become due again. The lease of a running handler is extended.",
    )
    stop_grace: float = setting(
        30.0,
        duration,
        "How long a stop waits for running deliveries, handlers and effects, all at the same time. Handlers that are "
        "still running are rolled back, and no attempt is counted.",
    )
    drain_delay: float = setting(
        0.0,
        duration,
        "How long `oncehook serve` still accepts deliveries after SIGTERM while `/readyz` responds 503, so that a load "
        "balancer stops sending before the process stops listening. `stop_grace` begins after it. See "
        "[many hosts](many-hosts.md#rolling-restarts).",
    )
    poll: float = setting(1.0, duration, "How often the worker and the relay query for work without a wake-up.")
    notify: bool = setting(
        True,
        boolean,
        "PostgreSQL: whether processes wake each other with `NOTIFY`. Without it, workers only query every `poll`.",
    )
    queue: str = setting(
        "database",
        queue_address,
        "Where workers learn of new events: `database`, or `sqs:URL` for an SQS queue. See [work by SQS](sqs.md).",
    )
    pooler: str = setting(
        "auto",
        one_of("auto", "none", "transaction"),
        "PostgreSQL: whether connections go through a pooler in transaction mode, such as PgBouncer. `auto` detects "
        "it. `none` is also correct for a pooler in session mode.",
    )
    clean_sessions: bool = setting(
        True,
        boolean,
        "PostgreSQL: whether a handler's session is cleaned before another handler gets its connection. `false` saves "
        "time if no handler changes session state. See [transactions](transactions.md#the-session).",
    )
    fast_paths: bool = setting(
        True,
        boolean,
        "Whether to use optimizations: those that depend on internals of uvicorn and asyncpg, and the fast path of "
        "duplicates. `false` uses the plain path of each. See [fast paths](operate.md#fast-paths).",
    )
    dedupe_window: float = setting(
        Default(30 * 86400.0),
        duration,
        "How long receipts are kept, and repeated deliveries are detected as duplicates. The default is extended for "
        "providers that retry for longer; a value shorter than that is an error at start. A source may override it.",
    )
    payload_retention: float = setting(
        Default(30 * 86400.0),
        duration,
        "How long bodies and headers are kept, at most `dedupe_window`. A source may override it.",
    )
    payload_store: str | None = setting(
        None,
        text,
        "Where bodies above `payload_threshold` are stored instead of the database: `s3://bucket/prefix` or "
        "`file:///directory`. Absent: all bodies are in the database. See [large payloads](large-payloads.md).",
    )
    payload_threshold: int = setting(
        64 * 2**10, size, "Bodies with more bytes than this are stored in the `payload_store`."
    )
    payload_fallback: str = setting(
        "database",
        one_of("database", "reject"),
        "Where a large body goes while the `payload_store` is down: `database` stores it as if it were small; `reject` "
        "answers 503, and the sender retries.",
    )
    keys: tuple[str, ...] = setting(
        (),
        texts,
        "The key ring that encrypts payloads and secrets at rest. Each entry is `id:base64`, or `env:NAME` or "
        "`file:PATH` with such entries. The first key encrypts, and all decrypt. `oncehook keys generate` prints one.",
    )
    effect_targets: tuple[str, ...] = setting(
        (),
        texts,
        "Addresses in private networks, and [brokers](brokers.md) with their credentials, that effects may use. They "
        "can be set only here, never in code.",
    )
    effect_retention: float | None = setting(
        None,
        duration,
        "How long the keys of finished effects are kept, at least as long as every receipt. Absent: forever.",
    )
    email_retention: float | None = setting(
        None,
        positive(duration),
        "How long the email facts of a message are kept after its last event. Absent: forever.",
    )
    email_suppress: tuple[str, ...] = setting(
        ("hard_bounce", "complaint", "unsubscribe", "rejected", "soft_bounces"),
        any_of("hard_bounce", "complaint", "unsubscribe", "rejected", "soft_bounces"),
        "The reasons for which an address is suppressed.",
    )
    email_soft_bounces: int = setting(
        5, whole_number, "How many soft-bounced messages within 30 days suppress an address. 0: soft bounces never do."
    )
    email_case_sensitive: bool = setting(
        False,
        boolean,
        "Whether `Jane@example.com` and `jane@example.com` are two different addresses for suppressions.",
    )
    version: str | None = setting(
        None,
        text,
        "The version of your handlers, such as a release or git sha, which is recorded with each attempt. Absent: the "
        "git sha of the working directory, if it has one.",
    )
    metrics_token: str | None = setting(
        None,
        text,
        "A token for `/metrics`, which requests must send as `Authorization: Bearer`. Absent: `/metrics` is open.",
    )
    log_level: str = setting("info", one_of("debug", "info", "warning", "error"), "The lowest level that is logged.")
    log_format: str = setting(
        "auto",
        one_of("auto", "json", "console"),
        "The format of log lines: `auto` is `console` on a terminal and `json` elsewhere.",
    )


@dataclass(frozen=True, kw_only=True)
class SourceSettings(IntakeSettings, SourceSpoolSettings):
    """The settings of one source: the keys under `[sources.NAME]`."""

    provider: str | None = setting(
        None, text, "The provider that sends to this source. Absent: the provider with the source's name."
    )
    secrets: tuple[str, ...] = setting(
        (),
        texts,
        "The secrets that verify deliveries; all of them are tried. Each is `env:NAME`, `file:PATH` or the value: an "
        "HMAC secret, a public key (PEM, base64 or hex) or `user:password`.",
    )
    tenants: TenantLimits | None = setting(  # noqa: RUF009 (a frozen default)
        None,
        tenant_limits,
        "Whether the source has tenants, which deliver to `/webhooks/NAME/TENANT`: `true`, or a table with their "
        'limits, such as `{ cache = 10000, ttl = "1m", rate = "50/s" }`. A source with `secrets_for` in code always '
        "has tenants. See [tenants](tenants.md).",
    )
    verify: str = setting(
        "signature",
        one_of("signature", "none"),
        "`signature` verifies every delivery; `none` accepts unsigned deliveries from anyone who knows the URL.",
    )
    types: tuple[str, ...] | None = setting(
        None,
        texts,
        "Allow-list of types: patterns with `*` and `?`, which also match as a dotted prefix. Absent: all types.",
    )
    where: Mapping[str, Any] | None = setting(
        None,
        conditions,
        "Filter on payload paths and facts: events that it leaves out are `ignored`, with the condition as the reason. "
        "Absent: all events. See [filters](filters.md).",
    )
    mode: str = setting(
        "queued",
        one_of("queued", "inline"),
        "`queued` acks after the commit and runs the handler later. `inline` runs the handler before the ack, and the "
        "provider's retries are its attempts.",
    )
    on_failure: str = setting(
        "retry",
        one_of("retry", "dead_letter"),
        "Inline: `retry` responds 5xx until `max_attempts`. `dead_letter` makes the event a dead letter at its first "
        "failure, and responds 2xx.",
    )
    unhandled: str = setting(
        "wait",
        one_of("wait", "ignore"),
        "Events that no process has a handler for: `wait` keeps them `received` until a process has one; `ignore` "
        "makes them `ignored` after 5 minutes. See [handlers](handlers.md#events-without-a-handler).",
    )
    max_attempts: int | None = setting(
        None,
        positive(whole_number),
        "After this many failed attempts, the event becomes a dead letter. Absent: 10, or 20 with a `forward`, or 5 "
        "inline.",
    )
    retry: Mapping[str, Any] | None = setting(
        None,
        retry_fields,
        'The retry policy: `{ attempts = 5, first = "2s", factor = 2, most = "10m" }`, or some of these keys. A '
        "handler's own `retry=` overrides it. See [retries](retries.md).",
    )
    timeout: float | None = setting(
        None,
        positive(duration),
        "How long one attempt may take. A handler's own `timeout=` overrides it. Absent: 5m, or 15s with a `forward`.",
    )
    max_body: int | None = setting(
        None, positive(size), "The largest body. Absent: the provider's, else the inbox's `max_body`."
    )
    tolerance: float | None = setting(
        None, duration, "How far a signed timestamp may be in the past or the future. Absent: the provider's tolerance."
    )
    dedupe_window: float | None = setting(
        None, duration, "How long its receipts are kept. Absent: the inbox's `dedupe_window`."
    )
    payload_retention: float | None = setting(
        None, duration, "How long its bodies and headers are kept. Absent: the inbox's `payload_retention`."
    )
    encrypt: bool = setting(
        False,
        boolean,
        "Encrypt its bodies, headers, effect arguments and error texts in the database with the key ring (`keys`). See "
        "[encryption](encryption.md).",
    )
    correlation: str | None = setting(None, text, "The path of the correlation id in the body.")
    id: tuple[str, ...] | None = setting(
        None,
        locators,
        "Where to read the event id, instead of the provider's id: for a sender whose id changes between retries.",
    )
    forward: str | None = setting(
        None,
        text,
        "The HTTP address that handles its events: a 2xx response settles them as processed. See "
        "[forwarding](forwarding.md). It can also be a queue of a [broker](brokers.md).",
    )
    forward_secret: tuple[str, ...] = setting(
        (),
        locators,
        "One or more secrets that sign forwarded requests (Standard Webhooks): `env:NAME`, `file:PATH` or the value.",
    )
    forward_timeout: float | None = setting(
        None, positive(duration), "How long one forwarded request may take in total. Absent: `timeout`, else 15s."
    )
    forward_concurrency: int = setting(
        8, whole_number, "How many requests one worker sends to that address at the same time."
    )
    forward_headers: tuple[str, ...] | None = setting(
        None,
        texts,
        "Headers of the delivery that are forwarded (shell patterns). Absent: the headers that identify the event, "
        "and trace headers.",
    )
    serial_by: tuple[str, ...] | None = setting(
        None,
        locators,
        "The serial key: events with the same key are handled one at a time, in order of arrival. `object_id`, or a "
        "location as in `id`.",
    )
    serial_failed: str = setting(
        "block",
        one_of("block", "skip"),
        "With `serial_by`: `block` makes later events of a key wait until its dead letter is replayed; `skip` lets "
        "them continue.",
    )
    email: bool = setting(
        False,
        boolean,
        "Project its email events into tables of status, suppressions and counts. See [email](email.md).",
    )
    topics: tuple[str, ...] = setting(
        (), texts, "SNS: the topic ARNs that may deliver to this source (shell patterns)."
    )
    public_url: str | None = setting(
        None,
        address,
        "The URL as it is registered with the provider, for providers that sign it. With it, forwarded headers are "
        "not read.",
    )
    webhook_id: str | None = setting(None, text, "PayPal: the id of the webhook, which is part of the signed text.")
    verify_token: str | None = setting(
        None, text, "Meta: the token that its handshake must contain. `env:NAME`, `file:PATH` or the value."
    )
    app_id: str | None = setting(
        None,
        text,
        "Microsoft Graph: the application's id. With it, notifications with resource data must carry tokens for it.",
    )
    sandbox: bool = setting(False, boolean, "PayPal, Plaid: use the keys of the test environment, and only those.")
