"""The rows of statistics: receipts, duplicates, rates and lags, counted by source and consumer."""

from oncehook.model.rows import QueryRow


class ReceiptCount(QueryRow, frozen=True):
    """The number of receipts of a source and consumer with one status."""

    source: str
    consumer: str
    status: str
    receipts: int
    last_received_at: str


class DuplicateCount(QueryRow, frozen=True):
    """The number of duplicates of a source, and how many of them had a different body."""

    source: str
    duplicates: int
    other_bodies: int


class DeadLetters(QueryRow, frozen=True):
    """A group of dead letters with the same source, consumer, handler and error."""

    source: str
    consumer: str
    handler: str | None
    last_error: str | None
    receipts: int
    first_received_at: str
    last_received_at: str
    first_failed_at: str
    last_failed_at: str
    last_receipt: int


class Rate(QueryRow, frozen=True):
    """The number of events of a series in one interval of time."""

    series: str  # received, duplicate, failed or rejected
    source: str
    number: int
    bucket: int


class WorkCount(QueryRow, frozen=True):
    """A number of receipts of one source and consumer."""

    source: str
    consumer: str
    number: int


class Lag(QueryRow, frozen=True):
    """The seconds since the oldest waiting receipt of a source and consumer was due; negative if it is not due yet."""

    source: str
    consumer: str
    lag: float


class LastReceived(QueryRow, frozen=True):
    """When a source's newest event arrived."""

    source: str
    received_at: str


class SourceTotals(QueryRow, frozen=True):
    """Waiting receipts and dead letters by source and consumer, and the time of the newest event by source."""

    waiting: list[WorkCount]
    dead_letters: list[WorkCount]
    last_received_at: dict[str, str]
