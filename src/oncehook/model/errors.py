"""The exceptions that several packages share.

OncehookError
├── ConfigurationError   a setting, source or provider is wrong; the message says which, and what to do
├── Rejected             a delivery is refused: not authentic, stale or malformed
├── Unavailable          an event cannot be recorded now; the sender is asked to try again
│   ├── IntakeFull       more claims wait than `intake_limit` or `intake_bytes` allow
│   ├── StoreUnavailable the database does not answer, or cannot write now
│   └── RowRefused       the database refuses this row for what is in it
│       └── KeyTaken     another receipt has one of the event's `unique` facts
└── SendFailed           a target that was called gave no whole answer
    └── SendRefused      a target was not called, because it must not be

Other subclasses of OncehookError are defined beside the code that raises them: RetryLater, Fail and Postpone in
`model/retry.py`; the others in `handlers/`, `effects/`, `http_client/`, `store/transaction.py`, `operations/`, `email/`
and `web/`.
"""

from typing import Literal

Reason = Literal["bad_signature", "stale_timestamp", "malformed"]


class OncehookError(Exception):
    """The base of the exceptions that Oncehook raises to its users."""


class ConfigurationError(OncehookError):
    """A setting, source or provider is wrong. The message holds no secret value."""


class Rejected(OncehookError):
    """A delivery is refused before anything is stored.

    `reason` is what the sender is told; `detail` is for the operator's log and never leaves it.
    Neither holds a part of a secret, a signature or a body.
    """

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason: Reason = reason
        self.detail = detail


class Unavailable(OncehookError):
    """An event cannot be recorded now. Nothing was acked, so the sender will try again."""

    def __init__(self, detail: str, *, retry_after: int = 5) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after


class IntakeFull(Unavailable):
    """More claims wait to be committed than the intake may hold."""


class StoreUnavailable(Unavailable):
    """The database does not answer, or cannot write now."""


class RowRefused(Unavailable):
    """The database refuses a row for what is in it. Alone in its statement, it fails alone."""


class KeyTaken(RowRefused):
    """Another receipt of the source has one of the event's `unique` facts. Nothing of the statement was written."""


class SendFailed(OncehookError):
    """A target that was called gave no whole answer: whether it got the request is not known."""


class SendRefused(SendFailed):
    """Nothing was sent: the target's address or a header of the request is not allowed."""
