"""Receipts of any age: moves their times back in the database."""

from datetime import UTC, date, timedelta

from tests.support.servers import run_sql

PARTITIONS = (
    "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'webhook_payloads'::regclass ORDER BY 1"
)
"""A query for the names of the partitions of payloads."""


def set_age(database: str, event_id: str, days: float, status: str | None = None) -> None:
    """Make an event this many days old, and set its status if given."""
    if database.startswith("sqlite"):
        then = f"strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-{days * 86400.0:f} seconds')"
        new = _ended(status, then)
        run_sql(database, f"UPDATE webhook_receipts SET received_at = {then}{new} WHERE event_id = '{event_id}'")
        return
    then = f"now() - {days} * interval '1 day'"
    new = _ended(status, then)
    update = f"UPDATE webhook_receipts SET received_at = {then}{new} WHERE event_id = '{event_id}'"
    for receipt, received_at in run_sql(database, f"{update} RETURNING id, received_at"):
        day = received_at.astimezone(UTC).date()
        create_day(database, day)
        run_sql(database, f"UPDATE webhook_payloads SET day = '{day}' WHERE receipt_id = {receipt}")


def _ended(status: str | None, then: str) -> str:
    """The columns that a status implies."""
    if status is None:
        return ""
    times = {"processed": "processed_at", "failed": "failed_at"}
    others = [f"{column} = {then if status == name else 'NULL'}" for name, column in times.items()]
    return ", ".join(["", f"status = '{status}'", "next_attempt_at = NULL", *others])


def set_status(database: str, event_id: str, consumer: str, status: str) -> None:
    """Set the status of the receipt that a consumer has of an event."""
    where = f"event_id = '{event_id}' AND consumer = '{consumer}'"
    run_sql(database, f"UPDATE webhook_receipts SET status = '{status}' WHERE {where}")


def create_day(database: str, day: date) -> str:
    """Create the partition of a day in PostgreSQL, if it does not exist, and return its name."""
    name = f"webhook_payloads_{day:%Y%m%d}"
    if run_sql(database, f"SELECT to_regclass('{name}') IS NULL") == [(True,)]:
        bounds = f"FROM ('{day}') TO ('{day + timedelta(days=1)}')"
        run_sql(database, f"CREATE TABLE {name} PARTITION OF webhook_payloads FOR VALUES {bounds}")
    return name
