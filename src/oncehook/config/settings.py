"""One table of settings.

The fields of `Settings` are the keys of `oncehook.toml`, the `ONCEHOOK_<NAME>` variables of the
environment (which win over the file) and the rows of docs/settings.md. The fields of
`SourceSettings` are the keys under `[sources.NAME]`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from oncehook.model.retry import retry_fields
from oncehook.model.values import (
    Network,
    Parse,
    address,
    any_of,
    boolean,
    duration,
    locators,
    networks,
    one_of,
    positive,
    size,
    text,
    texts,
    whole_number,
)


class Default(float):
    """A duration that nobody has set. A provider may need more than it; one that was set is never raised in silence."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """How long a source's receipts and payloads are kept, in seconds. A payload never outlives its receipt."""

    source: str
    receipts: float
    payloads: float


def setting(default: Any, parse: Parse, help: str) -> Any:
    return field(default=default, metadata={"parse": parse, "help": help})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What holds for the whole inbox."""

    database: str = setting(
        "sqlite:///oncehook.db", text, "Where the inbox lives: `sqlite:///file.db` or `postgresql://user@host/db`."
    )
    app: str | None = setting(
        None,
        text,
        "Your inbox with its handlers, `module:inbox` such as `hooks:inbox`: every command uses it, unless the command "
        "names another.",
    )
    max_body: int = setting(2**20, positive(size), "Largest body that is read; more is 413. A source may have its own.")
    receive_timeout: float = setting(
        15.0, positive(duration), "A request whose body is not complete by then gets 408 and leaves nothing behind."
    )
    claim_timeout: float = setting(
        10.0,
        positive(duration),
        "How long an event may wait for its turn, and again how long its commit may take; then 503.",
    )
    intake_limit: int = setting(
        10_000, positive(whole_number), "How many events may wait for their commit; more get 503."
    )
    intake_bytes: int = setting(
        64 * 2**20,
        positive(size),
        "How many bytes of bodies may be arriving, and as many again wait for their commit; more get 503.",
    )
    trusted_proxies: tuple[Network, ...] = setting(
        (),
        networks,
        "Addresses and networks of your proxies, such as `10.0.0.0/8`: what they say of the address that a sender used "
        "is believed, for sources without a `public_url` whose provider signs it, and of the client's address, for "
        "sign-ins and the audit. Nobody else is.",
    )
    migrate: str = setting(
        "auto",
        one_of("auto", "never"),
        "Whether a start brings the schema up to date (`oncehook migrate` does so too).",
    )
    unsafe_durability: bool = setting(
        False,
        boolean,
        "Start although PostgreSQL runs with `fsync=off` or `synchronous_commit=off`: acked events may be lost.",
    )
    concurrency: int = setting(16, positive(whole_number), "How many handlers a worker runs at once.")
    lease: float = setting(
        30.0,
        positive(duration),
        "How long a crashed worker's events stay with it; a running handler's lease is extended.",
    )
    stop_grace: float = setting(
        30.0,
        duration,
        "How long deliveries, handlers and effects that are under way may take to end at a stop, all at the same time; "
        "what does not is undone, and no attempt is counted.",
    )
    poll: float = setting(
        1.0, duration, "How often a worker and the relay of effects look for work when nothing wakes them."
    )
    notify: bool = setting(
        True,
        boolean,
        "PostgreSQL: whether processes wake each other with `NOTIFY`; else workers only look, every `poll`.",
    )
    pooler: str = setting(
        "auto",
        one_of("auto", "none", "transaction"),
        "PostgreSQL: whether a pooler in transaction mode, such as PgBouncer, is between; `auto` finds out. `none` is "
        "also right for one in session mode.",
    )
    clean_sessions: bool = setting(
        True,
        boolean,
        "PostgreSQL: whether a handler's session is cleaned before another handler gets its connection. `false` saves "
        "time where no handler changes session state; see [transactions](transactions.md#the-session).",
    )
    fast_paths: bool = setting(
        True,
        boolean,
        "Whether optimisations that lean on internals of uvicorn and asyncpg are used; `false` uses the plain variant "
        "of each. See [fast paths](operate.md#fast-paths).",
    )
    dedupe_window: float = setting(
        Default(30 * 86400.0),
        duration,
        "How long an event that comes again is a duplicate, and its receipt kept. Raised where a provider retries for "
        "longer; set lower than a provider needs, it is an error at start. A source may have its own.",
    )
    payload_retention: float = setting(
        Default(30 * 86400.0),
        duration,
        "How long bodies and headers are kept, at most the window. A source may have its own.",
    )
    effect_targets: tuple[str, ...] = setting(
        (), texts, "Addresses that effects may post to although they are not public; only here, never in code."
    )
    effect_retention: float | None = setting(
        None,
        duration,
        "How long the keys of effects that are done are kept, at least as long as every receipt. Absent: for ever.",
    )
    email_retention: float | None = setting(
        None, positive(duration), "How long email facts are kept after the last one of their message. Absent: for ever."
    )
    email_suppress: tuple[str, ...] = setting(
        ("hard_bounce", "complaint", "unsubscribe", "rejected", "soft_bounces"),
        any_of("hard_bounce", "complaint", "unsubscribe", "rejected", "soft_bounces"),
        "For which reasons an address is suppressed.",
    )
    email_soft_bounces: int = setting(
        5, whole_number, "How many messages that bounced softly within 30 days suppress an address; 0 never does."
    )
    email_case_sensitive: bool = setting(
        False,
        boolean,
        "If true, `Jane@example.com` and `jane@example.com` are two addresses for suppressions.",
    )
    version: str | None = setting(
        None,
        text,
        "What attempts are recorded with: a release or git sha of your handlers. Absent: the git sha of where "
        "it runs, if there is one.",
    )
    metrics_token: str | None = setting(
        None, text, "`/metrics` is open unless this is set; then it wants `Authorization: Bearer` with it."
    )
    log_level: str = setting("info", one_of("debug", "info", "warning", "error"), "The least that is logged.")
    log_format: str = setting(
        "auto", one_of("auto", "json", "console"), "How: `auto` is console on a terminal and JSON lines elsewhere."
    )


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """What holds for one source: the keys under `[sources.NAME]`."""

    provider: str | None = setting(None, text, "Who sends; the source's name unless given.")
    secrets: tuple[str, ...] = setting(
        (),
        texts,
        "All are tried. `env:NAME`, `file:PATH` or the value: HMAC secret, public key (PEM, base64 or hex) "
        "or `user:password`.",
    )
    verify: str = setting(
        "signature",
        one_of("signature", "none"),
        "`none` accepts unsigned deliveries from anyone who knows the address.",
    )
    types: tuple[str, ...] | None = setting(
        None, texts, "Allow-list of types: patterns with `*` and `?`, which also match as a dotted prefix. Absent: all."
    )
    mode: str = setting(
        "queued",
        one_of("queued", "inline"),
        "`queued` acks after the commit and works later; `inline` works first; the provider's retries are its own.",
    )
    on_failure: str = setting(
        "retry",
        one_of("retry", "dead_letter"),
        "Inline: `retry` answers 5xx until `max_attempts`, `dead_letter` gives up at the first failure, with 2xx.",
    )
    unhandled: str = setting(
        "wait",
        one_of("wait", "ignore"),
        "Events that no process has a handler for: `wait` keeps them `received` until one has, `ignore` makes them "
        "`ignored` after 5 minutes; see [handlers](handlers.md#events-without-a-handler).",
    )
    max_attempts: int | None = setting(
        None,
        positive(whole_number),
        "After this many attempts the event is a dead letter. Absent: 10, with a `forward` 20, inline 5.",
    )
    retry: Mapping[str, Any] | None = setting(
        None,
        retry_fields,
        'How its events are retried: `{ attempts = 5, first = "2s", factor = 2, most = "10m" }`, or some of these. A '
        "handler's own `retry=` wins. See [retries](retries.md).",
    )
    timeout: float | None = setting(
        None,
        positive(duration),
        "How long one attempt may take; a handler's own `timeout=` wins. Absent: 5m, with a `forward` 15s.",
    )
    max_body: int | None = setting(None, positive(size), "Largest body; else the provider's, else the global one.")
    tolerance: float | None = setting(
        None, duration, "How far a signed timestamp may be from now, either way; the provider's unless given."
    )
    dedupe_window: float | None = setting(None, duration, "How long its receipts are kept; else the global one.")
    payload_retention: float | None = setting(None, duration, "How long its bodies are kept; else the global one.")
    correlation: str | None = setting(None, text, "A path in the body whose value becomes the correlation id.")
    id: tuple[str, ...] | None = setting(
        None, locators, "A natural key in place of the provider's id, for a sender whose id changes between retries."
    )
    forward: str | None = setting(
        None,
        text,
        "The handler of its events is this HTTP address: 2xx is `processed`. See [forwarding](forwarding.md).",
    )
    forward_secret: tuple[str, ...] = setting(
        (), locators, "Signs what is forwarded (Standard Webhooks): `env:NAME`, `file:PATH` or the value; or several."
    )
    forward_timeout: float | None = setting(
        None, positive(duration), "How long one forwarded request may take, as a whole. Absent: `timeout`, else 15s."
    )
    forward_concurrency: int = setting(
        8, whole_number, "How many are under way to that address at once, in one worker."
    )
    forward_headers: tuple[str, ...] | None = setting(
        None,
        texts,
        "Headers of the delivery that go on (shell patterns). Absent: those that name the event, and traces.",
    )
    serial_by: tuple[str, ...] | None = setting(
        None,
        locators,
        "One event at a time per key, in order of arrival: `object_id`, or where the key is, in the words of `id`.",
    )
    serial_failed: str = setting(
        "block",
        one_of("block", "skip"),
        "With `serial_by`: whether a dead letter blocks later events of its key until it is replayed, or they pass it.",
    )
    email: bool = setting(
        False, boolean, "Keep its email events as facts, with status, suppressions and counts; see [email](email.md)."
    )
    topics: tuple[str, ...] = setting((), texts, "SNS: the topic ARNs that may deliver here (shell patterns).")
    public_url: str | None = setting(
        None,
        address,
        "The address as the provider has it, for those that sign it. Where it is set, forwarded headers are not read.",
    )
    webhook_id: str | None = setting(None, text, "PayPal: the id of the webhook, which is part of what it signs.")
    verify_token: str | None = setting(
        None, text, "Meta: the token that its handshake must repeat. `env:NAME`, `file:PATH` or the value."
    )
    app_id: str | None = setting(
        None,
        text,
        "Microsoft Graph: the application's id. With it, notifications with resource data must carry its tokens.",
    )
    sandbox: bool = setting(False, boolean, "PayPal, Plaid: keys are those of the test environment, and only those.")
