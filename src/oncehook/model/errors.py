"""The exceptions that several packages share.

OncehookError
├── ConfigurationError   a setting, source or provider is wrong; the message says which, and what to do
├── Rejected             a delivery is rejected: not authentic, stale or malformed
├── Unavailable          an event cannot be stored now; the sender should retry
│   ├── IntakeFull       more claims wait than `intake_limit` or `intake_bytes` allow
│   ├── RateLimited      a tenant delivers faster than its source allows
│   ├── TenantUnavailable the secrets of a tenant cannot be looked up now
│   ├── BrokerUnavailable a broker, a queue or an object store does not respond, or rejects a request
│   ├── StoreUnavailable the database does not respond, or cannot write now
│   └── RowRefused       the database rejects this row because of its values
│       ├── KeyTaken     another receipt has one of the event's unique keys
│       └── SourceMoved  the source lives in another shard, or is being moved to one
└── SendFailed           a target that was called sent no complete response
    └── SendRefused      a target was not called, because that is not allowed

Other subclasses of OncehookError are defined next to the code that raises them: RetryLater, Fail and Postpone in
`model/retry.py`, the others in `handlers/`, `effects/`, `http_client/`, `store/transaction.py`, `operations/`, `email/`
and `web/`.
"""

from typing import Literal

Reason = Literal["bad_signature", "stale_timestamp", "malformed"]


class OncehookError(Exception):
    """The base class of all exceptions that Oncehook raises to its users."""


class ConfigurationError(OncehookError):
    """A setting, source, provider or handler is wrong. The message says what to change, and never shows a secret."""


class Rejected(OncehookError):
    """A delivery is rejected before anything is stored.

    `reason` is sent to the sender. `detail` is only written to the operator's log. Neither contains any part of a
    secret, a signature or a body.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


class Unavailable(OncehookError):
    """An event cannot be stored now. The inbox sends no ack, so the sender will retry."""

    def __init__(self, detail: str, *, retry_after: int = 5) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after


class IntakeFull(Unavailable):
    """More claims wait for their commit than `intake_limit` or `intake_bytes` allow."""


class TenantUnavailable(Unavailable):
    """The secrets of a tenant cannot be looked up now. The cache of tenants logs it, at most once per second."""


class RateLimited(Unavailable):
    """A tenant delivers faster than its source allows. The sender gets 429."""


class StoreUnavailable(Unavailable):
    """The database does not respond, or cannot write now."""


class BrokerUnavailable(Unavailable):
    """A broker, a queue or an object store does not respond, or rejects a request. `code` is its own error code."""

    def __init__(self, detail: str, *, code: str = "", retry_after: int = 5) -> None:
        super().__init__(detail, retry_after=retry_after)
        self.code = code


class RowRefused(Unavailable):
    """The database rejects a row because of its values. Other rows are not affected: the row is retried by itself."""


class KeyTaken(RowRefused):
    """Another receipt of the source has one of the event's unique keys. The statement wrote nothing."""


class SourceMoved(RowRefused):
    """The source lives in another shard, or is being moved to one. The statement wrote nothing."""


class SendFailed(OncehookError):
    """A target that was called sent no complete response. It may or may not have received the request."""


class SendRefused(SendFailed):
    """A request was not sent, because the target's address or a header of the request is not allowed."""
